// Products of one row (M = 1) with weights in strips: linear and grouped_linear.
//
// A block is kKGroups warps; it takes whole strips, and warp g sums k group g of each. Every warp streams its own pieces through a ring of slots in
// shared memory, running ahead across strips; a lane reads only what it copied itself, so the warps meet once per strip, to add the groups in order.
// Weights start to flow before the previous kernel ends. Each warp turns the part of x it needs into operand form itself. A launch may have one block more,
// for work beside the products (CombWork).
// Shared memory: rings 8 x kDepth x 2176 bytes, x 256 bytes per chunk and term, sums 2 x 8 x 16 x 4 floats.
// Bound by reading the weights.
#include <algorithm>

#include "backends/gpu/portable/row_ops.h"
#include "backends/gpu/sm90/activation.h"
#include "backends/gpu/sm90/products.h"

namespace dsv4::gpu {
namespace {

constexpr int kWarps = kKGroups;
constexpr int kThreads = kWarps * 32;
constexpr int kSlotBytes = 2048 + kMxfp4ChunkScaleBytes + 64;  // largest piece; a multiple of 128
constexpr int kTermBytes = 256;                                // one term of one chunk of x
constexpr int kZeroBytes = 512;                                // zeros for operand columns without a term, from kZeroShift: other banks than the terms
constexpr int kZeroShift = 64;
static_assert(kSlotBytes % 128 == 0);

struct Strip {
  const RowJob* job;
  int index;  // within the job
};

__device__ Strip strip_at(const RowProductArgs& a, int i) {
  int j = 0;
  while (j + 1 < a.num_jobs && i >= a.jobs[j + 1].first_strip) ++j;
  return {&a.jobs[j], i - a.jobs[j].first_strip};
}

// The pieces of this warp's k group, strip after strip.
struct Cursor {
  int strip;      // global index
  int step;       // to the next strip
  int piece = 0;  // within the group
  int pieces = 0;
  WeightFormat format = WeightFormat::kFp8Block;
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;
};

// The formats a launch meets: a kernel for one format alone needs fewer registers, and three of its blocks fit a multiprocessor.
enum class Formats : uint8_t { kFp8, kBF16, kMxfp4, kMixed };

template <Formats kFormats>
__device__ WeightFormat format_of(WeightFormat f) {
  return kFormats == Formats::kFp8     ? WeightFormat::kFp8Block
         : kFormats == Formats::kBF16  ? WeightFormat::kBF16
         : kFormats == Formats::kMxfp4 ? WeightFormat::kMxfp4
                                       : f;
}

__device__ int pieces_per_chunk(WeightFormat f) { return f == WeightFormat::kBF16 ? 2 : 1; }

template <Formats kFormats>
__device__ void enter_strip(const RowProductArgs& a, Cursor& c, int first_chunk, int chunks) {
  const Strip s = strip_at(a, c.strip);
  const int64_t chunk = static_cast<int64_t>(s.index) * a.chunks + first_chunk;
  c.piece = 0;
  c.format = format_of<kFormats>(s.job->format);
  c.pieces = chunks * pieces_per_chunk(c.format);
  c.data = s.job->data + chunk * (c.format == WeightFormat::kFp8Block ? kFp8ChunkBytes : c.format == WeightFormat::kBF16 ? kBf16ChunkBytes : kMxfp4ChunkBytes);
  c.scale = c.format == WeightFormat::kMxfp4 ? s.job->scale + chunk * kMxfp4ChunkScaleBytes : nullptr;
}

// Starts the copy of the cursor's piece, if there is one, and moves on. Always commits a group.
template <Formats kFormats>
__device__ void copy_next(const RowProductArgs& a, Cursor& c, int strip_end, int turn, int first_chunk, int chunks, uint32_t slot, int lane) {
  if (c.strip < strip_end) {
    const WeightFormat format = format_of<kFormats>(c.format);
    if (format == WeightFormat::kFp8Block) {
      copy_piece<WeightFormat::kFp8Block>(slot, c.data, nullptr, lane);
      c.data += kFp8ChunkBytes;
    } else if (format == WeightFormat::kBF16) {
      copy_piece<WeightFormat::kBF16>(slot, c.data, nullptr, lane);
      c.data += kBf16ChunkBytes / 2;
    } else {
      copy_piece<WeightFormat::kMxfp4>(slot, c.data, c.scale, lane);
      c.data += kMxfp4ChunkBytes;
      c.scale += kMxfp4ChunkScaleBytes;
    }
    if (++c.piece == c.pieces) {
      c.strip += c.step;
      c.step = turn - c.step;
      if (c.strip < strip_end) enter_strip<kFormats>(a, c, first_chunk, chunks);
    }
  }
  commit_copies();
}

// x as it is.
struct Plain {
  __device__ float4 operator()(float4 v, int) const { return v; }
};
// x through rms_norm.
struct Normed {
  const uint16_t* weight;
  float root;
  __device__ float4 operator()(float4 v, int column) const {
    const uint16_t* w = weight + column;
    return {rms_value(v.x, root, w[0]), rms_value(v.y, root, w[1]), rms_value(v.z, root, w[2]), rms_value(v.w, root, w[3])};
  }
};

// Turns the warp's chunks of x into the one operand. `through` maps four values and their column.
template <Operand kOperand, class Through>
__device__ void prepare_x(const RowProductArgs& a, int first_chunk, int chunks, uint8_t* x_terms, float* x_scales, int lane, const Through& through) {
  constexpr int kBatch = 4;  // loads under way together
  for (int c0 = first_chunk; c0 < first_chunk + chunks; c0 += kBatch) {
    float4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (c0 + i < first_chunk + chunks) v[i] = load_four(a.x + (c0 + i) * kChunkColumns + 4 * lane);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int c = c0 + i;
      if (c >= first_chunk + chunks) break;
      const ActivationBlock block = activation_block<kOperand>(through(v[i], c * kChunkColumns + 4 * lane));
#pragma unroll
      for (int term = 0; term < operand_terms(kOperand); ++term) {
        *reinterpret_cast<uint2*>(x_terms + (term * a.chunks + c) * kTermBytes + 8 * lane) = block.term[term];
      }
      if (lane == 0) x_scales[c] = block.scale;
    }
  }
}

// kOperand: of a launch with one operand; a mixed one looks it up. kDepth: slots of a warp's ring. kComb: the last block has a.comb to do, and no strips.
template <Formats kFormats, Operand kOperand, int kDepth, bool kComb>
__global__ void __launch_bounds__(kThreads, 2) row_product(const __grid_constant__ RowProductArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  if constexpr (kComb) {
    if (static_cast<int>(blockIdx.x) == a.blocks) {
      wait_previous();
      allow_next();
      make_comb(a.comb);
      return;
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  float* sums = reinterpret_cast<float*>(shared);        // [2][kWarps][16][4]
  float* x_scales = sums + 2 * kWarps * kStripRows * 4;  // [operands][chunks]
  uint8_t* x_terms = shared + a.x_terms_offset;          // [terms][chunks][256]
  const uint32_t ring = shared_address(shared + a.ring_offset) + warp * kDepth * kSlotBytes;

  // What the operand columns without a term read.
  uint32_t* zeros = reinterpret_cast<uint32_t*>(shared + a.ring_offset - kZeroBytes);
  if (threadIdx.x < kZeroBytes / 4) zeros[threadIdx.x] = 0;
  __syncthreads();

  const int first_chunk = static_cast<int>(group_begin(warp, a.chunks)), chunks = static_cast<int>(group_begin(warp + 1, a.chunks)) - first_chunk;
  // Strips of this block: rounds over all blocks, to and fro, so that those with a strip more are the last ones, as jobs come from the widest format to
  // the narrowest; or (grouped) contiguous, so that a block meets few groups. Steps alternate: each is `turn` less the one before.
  const bool grouped = a.strips_per_group != 0;
  const int begin = grouped ? static_cast<int>(static_cast<int64_t>(a.strips) * blockIdx.x / a.blocks) : static_cast<int>(blockIdx.x);
  const int end = grouped ? static_cast<int>(static_cast<int64_t>(a.strips) * (blockIdx.x + 1) / a.blocks) : a.strips;
  const int turn = grouped ? 2 : 2 * a.blocks;
  int step = grouped ? 1 : turn - 1 - 2 * begin;

  Cursor ahead{begin, step};
  if (chunks == 0) ahead.strip = end;
  if (ahead.strip < end) enter_strip<kFormats>(a, ahead, first_chunk, chunks);
#pragma unroll
  for (int i = 0; i < kDepth; ++i) copy_next<kFormats>(a, ahead, end, turn, first_chunk, chunks, ring + i * kSlotBytes, lane);
  wait_previous();
  allow_next();
  if (threadIdx.x == 0) bring_to_l2(a.soon);

  // x is turned into operand form chunk by chunk as the first strip that wants it goes along, so that its pieces' slots are free again early; BF16 weights,
  // whose launches are too short (gate) or too long (lm_head) for that to matter, take it all at once.
  constexpr bool kByJob = kFormats == Formats::kMixed, kAtOnce = kFormats == Formats::kBF16;
  constexpr int kHeld = kByJob || kAtOnce ? 4 : 8;  // chunks fetched ahead
  float4 held[kHeld];
  const auto put_chunk = [&](float4 v, int chunk, int o, int terms) {
    const ActivationBlock block = kByJob ? activation_block(a.operands[o], v) : activation_block<kOperand>(v);
#pragma unroll
    for (int term = 0; term < 3; ++term) {
      if (term < terms)
        *reinterpret_cast<uint2*>(x_terms + ((a.first_term[o] + term) * a.chunks + first_chunk + chunk) * kTermBytes + 8 * lane) = block.term[term];
    }
    if (lane == 0) x_scales[o * a.chunks + first_chunk + chunk] = block.scale;
  };
  int slot = 0, x_group[kMaxOperands] = {-1, -1};
  uint32_t buffer = 0;
  for (int strip = begin; strip < end; strip += step, step = turn - step, buffer ^= 1) {
    const Strip s = strip_at(a, strip);
    const WeightFormat format = format_of<kFormats>(s.job->format);
    // fp8: lane i fetches the block scale of the group's chunk i.
    float fp8_scale = 0;
    if (format == WeightFormat::kFp8Block && lane < chunks) {
      fp8_scale = decode_e8m0(s.job->scale[static_cast<int64_t>(s.index) / (kFp8WeightBlock / kStripRows) * a.chunks + first_chunk + lane]);
    }
    const int o = kFormats == Formats::kMixed ? s.job->operand : 0;
    const Operand operand = kFormats == Formats::kMixed ? a.operands[o] : kOperand;
    const int terms = operand_terms(operand);
    const int group = grouped ? strip / a.strips_per_group : 0;
    const bool fresh = group != x_group[o];
    const float* const x = a.x + (static_cast<int64_t>(group) * a.chunks + first_chunk) * kChunkColumns + 4 * lane;
    if (fresh) {
      x_group[o] = group;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (i < chunks) held[i] = load_four(x + i * kChunkColumns);
      }
      __syncwarp();
      if constexpr (kAtOnce) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          if (i < chunks) put_chunk(held[i], i, o, terms);
        }
        for (int i = kHeld; i < chunks; ++i) put_chunk(load_four(x + i * kChunkColumns), i, o, terms);
      }
    }

    const uint32_t terms_at =
        (g < terms ? shared_address(x_terms + ((a.first_term[o] + g) * a.chunks + first_chunk) * kTermBytes) : shared_address(zeros) + kZeroShift) + 8 * t;
    const uint32_t chunk_stride = g < terms ? kTermBytes : 0;
    float sum[1][4] = {};
    const int pieces = chunks * pieces_per_chunk(format);
#pragma unroll 1
    for (int piece = 0; piece < pieces; ++piece) {
      const int chunk = format == WeightFormat::kBF16 ? piece / 2 : piece;
      if (!kAtOnce && fresh && (format != WeightFormat::kBF16 || piece % 2 == 0)) {
        const float4 v = chunk < kHeld ? held[0] : load_four(x + chunk * kChunkColumns);
#pragma unroll
        for (int i = 1; i < kHeld; ++i) held[i - 1] = held[i];
        put_chunk(v, chunk, o, terms);
      }
      wait_copies<kDepth - 1>();
      __syncwarp();
      const uint32_t at = ring + slot * kSlotBytes;
      const uint32_t b_at = terms_at + chunk * chunk_stride + (format == WeightFormat::kBF16 ? piece % 2 * (kTermBytes / 2) : 0);
      const auto load_b = [&](int, int step_index) { return load_shared8(b_at + step_index * 32); };
      const float x_scale = x_scales[o * a.chunks + first_chunk + chunk];
      const float2 scales[1] = {{x_scale, x_scale}};
      if (format == WeightFormat::kFp8Block) {
        piece_product<WeightFormat::kFp8Block, 1>(sum, at, lane, shuffle_from(fp8_scale, chunk), scales, load_b);
      } else if (format == WeightFormat::kBF16) {
        piece_product<WeightFormat::kBF16, 1>(sum, at, lane, 0.0f, scales, load_b);
      } else {
        piece_product<WeightFormat::kMxfp4, 1>(sum, at, lane, 0.0f, scales, load_b);
      }
      __syncwarp();
      copy_next<kFormats>(a, ahead, end, turn, first_chunk, chunks, at, lane);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }

    float* mine = sums + (buffer * kWarps + warp) * kStripRows * 4;
    if (t < 2) {
      mine[g * 4 + 2 * t] = sum[0][0];
      mine[g * 4 + 2 * t + 1] = sum[0][1];
      mine[(g + 8) * 4 + 2 * t] = sum[0][2];
      mine[(g + 8) * 4 + 2 * t + 1] = sum[0][3];
    }
    __syncthreads();
    if (threadIdx.x < kStripRows) {
      const float* row = sums + buffer * kWarps * kStripRows * 4 + threadIdx.x * 4;
      float total[3];
#pragma unroll
      for (int term = 0; term < 3; ++term) {
        total[term] = row[term];
#pragma unroll
        for (int q = 1; q < kWarps; ++q) total[term] = __fadd_rn(total[term], row[q * kStripRows * 4 + term]);
      }
      s.job->y[static_cast<int64_t>(s.index) * kStripRows + threadIdx.x] = combine_terms(total, terms);
    }
  }
}

// Short k (at most kShortChunks chunks): a warp takes whole strips by itself and adds the groups in its registers. The block makes x once; after that no
// two warps meet.
constexpr int kShortChunks = 16;

template <Formats kFormats, Operand kOperand>
__global__ void __launch_bounds__(kThreads, 3) row_product_short(const __grid_constant__ RowProductArgs a) {
  constexpr WeightFormat kFormat = kFormats == Formats::kFp8    ? WeightFormat::kFp8Block
                                   : kFormats == Formats::kBF16 ? WeightFormat::kBF16
                                                                : WeightFormat::kMxfp4;
  using Piece = PieceOf<kFormat>;
  constexpr int kDepth = 3, kTerms = operand_terms(kOperand);
  static_assert(kThreads == kRmsThreads && kShortChunks * kChunkColumns <= kRmsThreads * kRmsHeld);
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float norm_scratch[kGroupLanes];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, t = lane % 4;
  float* x_scales = reinterpret_cast<float*>(shared) + 2 * kWarps * kStripRows * 4;
  uint8_t* x_terms = shared + a.x_terms_offset;
  uint32_t* zeros = reinterpret_cast<uint32_t*>(shared + a.ring_offset - kZeroBytes);
  if (threadIdx.x < kZeroBytes / 4) zeros[threadIdx.x] = 0;
  const uint32_t ring = shared_address(shared + a.ring_offset) + warp * kDepth * kSlotBytes;
  // Warps of all blocks in turn, blocks first: neighbours in time lie in different multiprocessors.
  const int begin = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x), step = kWarps * static_cast<int>(gridDim.x);
  int end = a.strips;
  if (a.positions != nullptr && (a.positions[0] + 1) / a.ratio <= a.all_of) end = a.sure_strips;  // no kernel writes positions
  // Where the first strip is wanted in any case its copies do not wait for that answer.
  const int first_end = a.positions == nullptr || begin < a.sure_strips ? a.strips : end;
  Cursor ahead{begin, step};
  if (ahead.strip < first_end) enter_strip<kFormats>(a, ahead, 0, a.chunks);
#pragma unroll
  for (int i = 0; i < kDepth; ++i) copy_next<kFormats>(a, ahead, first_end, 2 * step, 0, a.chunks, ring + i * kSlotBytes, lane);
  if (a.norm != nullptr && threadIdx.x * 64 < static_cast<unsigned>(a.chunks * kChunkColumns)) {
    prefetch_l2(a.norm + threadIdx.x * 64);
  }
  wait_previous();
  allow_next();
  if (threadIdx.x == 0) bring_to_l2(a.soon);
  const int first = static_cast<int>(group_begin(warp, a.chunks)), chunks = static_cast<int>(group_begin(warp + 1, a.chunks)) - first;
  if (a.norm == nullptr) {
    prepare_x<kOperand>(a, first, chunks, x_terms, x_scales, lane, Plain{});
  } else {
    const int dim = a.chunks * kChunkColumns;
    float held[kRmsHeld];
#pragma unroll
    for (int i = 0; i < kRmsHeld; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kRmsThreads;
      held[i] = at < dim ? a.x[at] : 0.0f;
    }
    const Normed normed{a.norm, rms_root(held, 0.0f, dim, a.norm_eps, norm_scratch)};
    prepare_x<kOperand>(a, first, chunks, x_terms, x_scales, lane, normed);
  }
  __syncthreads();

  const uint32_t terms_at = (g < kTerms ? shared_address(x_terms + g * a.chunks * kTermBytes) : shared_address(zeros) + kZeroShift) + 8 * t;
  const uint32_t chunk_stride = g < kTerms ? kTermBytes : 0;
  int slot = 0;
  for (int strip = begin; strip < end; strip += step) {
    const Strip s = strip_at(a, strip);
    float fp8_scale = 0;
    if (kFormat == WeightFormat::kFp8Block && lane < a.chunks)
      fp8_scale = decode_e8m0(s.job->scale[static_cast<int64_t>(s.index) / (kFp8WeightBlock / kStripRows) * a.chunks + lane]);
    float total[4] = {}, sum[1][4] = {};
    int q = 0, q_end = static_cast<int>(group_begin(1, a.chunks));
    for (int piece = 0; piece < a.chunks * Piece::kPerChunk; ++piece) {
      const int chunk = piece / Piece::kPerChunk;
      while (chunk >= q_end) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          total[c] = __fadd_rn(total[c], sum[0][c]);
          sum[0][c] = 0;
        }
        q_end = static_cast<int>(group_begin(++q + 1, a.chunks));
      }
      wait_copies<kDepth - 1>();
      __syncwarp();
      const uint32_t at = ring + slot * kSlotBytes, b_at = terms_at + chunk * chunk_stride + piece % Piece::kPerChunk * (kTermBytes / Piece::kPerChunk);
      const float2 scales[1] = {{x_scales[chunk], x_scales[chunk]}};
      piece_product<kFormat, 1>(sum, at, lane, shuffle_from(fp8_scale, chunk), scales,
                                [&](int, int step_index) { return load_shared8(b_at + step_index * 32); });
      __syncwarp();
      copy_next<kFormats>(a, ahead, end, 2 * step, 0, a.chunks, at, lane);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) total[c] = __fadd_rn(total[c], sum[0][c]);
    // Columns 0 and 1 are with lane t = 0, column 2 with t = 1.
    const float low = shuffle_from(total[0], lane + 1 < 32 ? lane + 1 : lane), high = shuffle_from(total[2], lane + 1 < 32 ? lane + 1 : lane);
    if (t == 0) {
      const float rows[2][3] = {{total[0], total[1], low}, {total[2], total[3], high}};
      float* y = s.job->y + static_cast<int64_t>(s.index) * kStripRows + g;
      y[0] = combine_terms(rows[0], kTerms);
      y[8] = combine_terms(rows[1], kTerms);
    }
  }
}

// Slots of a warp's ring. kWhole: all of a strip of 4,096 columns, so that the router's weights are there before its input is.
constexpr int kShallow = 3, kMixed = 4, kDeep = 5, kWhole = 8;

using RowKernel = void (*)(RowProductArgs);

// Kernels of FP8 or MXFP4 weights, by the form of x.
template <Formats kFormats>
RowKernel short_kernel(Operand operand) {
  if (operand == Operand::kE4M3) return row_product_short<kFormats, Operand::kE4M3>;
  return operand == Operand::kBf16 ? row_product_short<kFormats, Operand::kBf16> : row_product_short<kFormats, Operand::kF16x2>;
}
template <Formats kFormats>
RowKernel deep_kernel(Operand operand) {
  if (operand == Operand::kE4M3) return row_product<kFormats, Operand::kE4M3, kDeep, false>;
  return operand == Operand::kBf16 ? row_product<kFormats, Operand::kBf16, kDeep, false> : row_product<kFormats, Operand::kF16x2, kDeep, false>;
}

constexpr int kShortStrips = 1024;  // fewer would leave warps without work

bool one_format(const RowProductArgs& args, WeightFormat format) {
  return std::all_of(args.jobs, args.jobs + args.num_jobs, [format](const RowJob& job) { return job.format == format; });
}

}  // namespace

bool row_takes_norm(const RowProductArgs& args) {
  return args.chunks <= kShortChunks && args.strips >= kShortStrips && args.strips_per_group == 0 &&
         (one_format(args, WeightFormat::kFp8Block) || one_format(args, WeightFormat::kBF16) || one_format(args, WeightFormat::kMxfp4));
}

Status launch_row_product(GpuContext& gpu, RowProductArgs args, int blocks) {
  args.soon = take_read_soon(gpu);
  int terms = 0;
  for (int o = 0; o < args.num_operands; ++o) {
    args.first_term[o] = terms;
    terms += operand_terms(args.operands[o]);
  }
  const auto align = [](int64_t v) { return static_cast<int>((v + 127) / 128 * 128); };
  args.x_terms_offset = align(4 * (2 * kWarps * kStripRows * 4 + args.num_operands * args.chunks));
  args.ring_offset = args.x_terms_offset + terms * args.chunks * kTermBytes + kZeroBytes;
  const bool all[3] = {one_format(args, WeightFormat::kFp8Block), one_format(args, WeightFormat::kBF16), one_format(args, WeightFormat::kMxfp4)};
  const Operand operand = args.operands[0];
  if (row_takes_norm(args)) {
    auto kernel = row_product_short<Formats::kBF16, Operand::kBf16x3>;
    if (all[0]) kernel = short_kernel<Formats::kFp8>(operand);
    if (all[2]) kernel = short_kernel<Formats::kMxfp4>(operand);
    const int64_t most = 2 * gpu.properties.multiprocessors, wanted = ceil_div(args.strips, kWarps);
    return launch(gpu, "linear (row_product_short)", kernel,
                  {.blocks_x = wanted < most ? wanted : most, .threads = kThreads, .shared_bytes = args.ring_offset + kWarps * 3 * kSlotBytes}, args);
  }
  int depth = kDeep;
  auto kernel = row_product<Formats::kMixed, Operand::kE4M3, kMixed, false>;
  if (all[0]) kernel = deep_kernel<Formats::kFp8>(operand);
  if (all[1]) kernel = row_product<Formats::kBF16, Operand::kBf16x3, kShallow, false>;
  if (all[2]) kernel = deep_kernel<Formats::kMxfp4>(operand);
  if (!all[0] && !all[2]) depth = all[1] ? kShallow : kMixed;
  args.blocks = blocks;
  if (gpu.beside != nullptr && depth != kDeep) {  // what reads the output of hyper-connections, as a rule
    args.comb = *gpu.beside;
    gpu.beside = nullptr;
    if (all[1]) depth = kWhole;
    kernel = all[1] ? row_product<Formats::kBF16, Operand::kBf16x3, kWhole, true> : row_product<Formats::kMixed, Operand::kE4M3, kMixed, true>;
    ++blocks;
  }
  return launch(gpu, "linear (row_product)", kernel, {.blocks_x = blocks, .threads = kThreads, .shared_bytes = args.ring_offset + kWarps * depth * kSlotBytes},
                args);
}

}  // namespace dsv4::gpu
