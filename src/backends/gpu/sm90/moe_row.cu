// moe_experts for one row. expert_up_row: a block is eight warps, warp g sums k group g (sm90/fragment.h) of one strip of w1 and the same strip of w3
// for one chosen expert; the block adds the groups, applies swiglu and the routing weight. expert_down_row: a block owns a strip of the output and
// walks the chosen experts in order. The additions are those of the tile kernels (moe_tile.cu). Both stream pieces through per-warp rings
// (row_product.cu); expert_down_row starts its weights before expert_up_row ends, for the expert ids are older than both.
// Bound by reading the chosen experts' weights.
#include <algorithm>

#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/moe.h"

namespace dsv4::gpu {
namespace {

constexpr int kWarps = kKGroups;
constexpr int kThreads = kWarps * 32;
constexpr int kTermBytes = 256;
constexpr int kZeroBytes = 512;  // zeros for operand columns without a term, from kZeroShift: other banks than the terms
constexpr int kZeroShift = 64;
constexpr int kUpDepth = 3;
constexpr int kDownDepth = 3;
// Sets of warps of a block of expert_down_row: set s takes the chosen experts s, s + sets, ..; and its blocks on a multiprocessor.
template <WeightFormat kFormat>
inline constexpr int kDownSets = kFormat == WeightFormat::kMxfp4 ? 3 : 2;
template <WeightFormat kFormat>
inline constexpr int kDownBlocks = kFormat == WeightFormat::kMxfp4 ? 1 : 2;

struct RowArgs {
  ExpertTable table;
  const float* x;
  const int32_t* experts;
  const float* weights;
  int topk;
  float limit;
  float* act;  // [topk][ffn]
  float* y;
};

template <WeightFormat kFormat>
inline constexpr int kPieceBytes = PieceOf<kFormat>::kDataBytes + PieceOf<kFormat>::kScaleBytes;

// Puts this warp's chunks of a row into operand form at terms[term][chunk][256] and scales[chunk].
template <Operand kOperand>
__device__ void make_operand(const float* x, int first_chunk, int last_chunk, int chunks, uint8_t* terms, float* scales, int lane) {
  constexpr int kBatch = 4;
  for (int c0 = first_chunk; c0 < last_chunk; c0 += kBatch) {
    float4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (c0 + i < last_chunk) v[i] = load_four(x + (c0 + i) * kChunkColumns + 4 * lane);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (c0 + i >= last_chunk) break;
      const ActivationBlock block = activation_block<kOperand>(v[i]);
#pragma unroll
      for (int term = 0; term < operand_terms(kOperand); ++term)
        *reinterpret_cast<uint2*>(terms + (term * chunks + c0 + i) * kTermBytes + 8 * lane) = block.term[term];
      if (lane == 0) scales[c0 + i] = block.scale;
    }
  }
}

// What a block needs of a chosen expert, fetched once.
struct Chosen {
  int32_t id;  // -1: none
  float weight;
  const uint8_t *w[2], *scale[2];  // up: w1, w3; down: w2
};

// Sums of term columns 0..3 of a strip: lanes t = 0, 1 hold them.
__device__ void put_sums(float* to, const float (&sum)[4], int g, int t) {
  if (t >= 2) return;
  to[g * 4 + 2 * t] = sum[0];
  to[g * 4 + 2 * t + 1] = sum[1];
  to[(g + 8) * 4 + 2 * t] = sum[2];
  to[(g + 8) * 4 + 2 * t + 1] = sum[3];
}

// Adds the groups' sums of one row, then its terms. `at`: first group's row, groups `stride` floats apart.
__device__ float add_groups(const float* at, int stride, int terms) {
  float total[3];
#pragma unroll
  for (int term = 0; term < 3; ++term) {
    total[term] = at[term];
#pragma unroll
    for (int q = 1; q < kWarps; ++q) total[term] = __fadd_rn(total[term], at[q * stride + term]);
  }
  return combine_terms(total, terms);
}

// As piece_product for one mxfp4 chunk of kStrips strips that meet the same operand of one term: operand B is loaded once for all, and only column 0
// is followed (sum[0], sum[2]: rows g, g + 8, right where t = 0). The strips' pieces lie kPieceBytes apart.
template <int kStrips>
__device__ void mxfp4_column(float (&sum)[kStrips][4], uint32_t at, int lane, float x_scale, uint32_t operand) {
  constexpr int kBytes = kPieceBytes<WeightFormat::kMxfp4>;
  uint2 scales[kStrips];
  float part[kStrips][2] = {};
#pragma unroll
  for (int i = 0; i < kStrips; ++i) scales[i] = load_shared8(at + i * kBytes + kMxfp4ChunkBytes + lane / 4 * 8);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 w[kStrips];
#pragma unroll
    for (int i = 0; i < kStrips; ++i) w[i] = load_shared16(at + i * kBytes + half * 512 + lane * 16);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int q = 2 * half + j;
      const uint2 b_even = load_shared8(operand + 2 * q * 32), b_odd = load_shared8(operand + (2 * q + 1) * 32);
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
        OperandA even, odd;
        mxfp4_operands(j == 0 ? w[i].x : w[i].z, j == 0 ? w[i].y : w[i].w, even, odd);
        float acc[4] = {};
        mma_f16(acc, even, b_even);
        mma_f16(acc, odd, b_odd);
        part[i][0] = __fmaf_rn(acc[0], mxfp4_scale(scales[i].x, q), part[i][0]);
        part[i][1] = __fmaf_rn(acc[2], mxfp4_scale(scales[i].y, q), part[i][1]);
      }
    }
  }
  const float factor = __fmul_rn(x_scale, kMxfp4Unit);
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
    sum[i][0] = __fmaf_rn(part[i][0], factor, sum[i][0]);
    sum[i][2] = __fmaf_rn(part[i][1], factor, sum[i][2]);
  }
}

template <WeightFormat kFormat, Operand kOperand>
__global__ void __launch_bounds__(kThreads, 3) expert_up_row(const __grid_constant__ RowArgs a) {
  using Piece = PieceOf<kFormat>;
  constexpr int kBytes = kPieceBytes<kFormat>, kTerms = operand_terms(kOperand);
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Chosen chosen[kMaxTopk];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, t = lane % 4;
  const int chunks = static_cast<int>(a.table.hidden_dim / kChunkColumns), strips = static_cast<int>(a.table.ffn_dim / kStripRows);
  const int first_chunk = static_cast<int>(group_begin(warp, chunks)), last_chunk = static_cast<int>(group_begin(warp + 1, chunks));
  const int pieces = (last_chunk - first_chunk) * Piece::kPerChunk;
  float* sums = reinterpret_cast<float*>(shared);  // [2 buffers][gate, up][groups][16][4]
  constexpr int kSumFloats = kWarps * kStripRows * 4;
  float* scales = sums + 4 * kSumFloats;
  uint8_t* terms = reinterpret_cast<uint8_t*>(scales + (chunks + 31) / 32 * 32);
  uint32_t* zeros = reinterpret_cast<uint32_t*>(terms + kTerms * chunks * kTermBytes);  // what the operand columns without a term read
  const uint32_t ring = shared_address(zeros) + kZeroBytes + warp * kUpDepth * 2 * kBytes;
  const int units = a.topk * strips;

  if (threadIdx.x < kZeroBytes / 4) zeros[threadIdx.x] = 0;
  wait_previous();
  allow_next();
  if (threadIdx.x < a.topk) {
    const int32_t e = a.experts[threadIdx.x];
    Chosen& c = chosen[threadIdx.x];
    c.id = e;
    if (e >= 0) {
      c.weight = a.weights[threadIdx.x];
      c.w[0] = a.table.w1[e];
      c.w[1] = a.table.w3[e];
      c.scale[0] = kFormat == WeightFormat::kBF16 ? nullptr : a.table.w1_scale[e];
      c.scale[1] = kFormat == WeightFormat::kBF16 ? nullptr : a.table.w3_scale[e];
    }
  }
  __syncthreads();
  struct {
    int unit, piece = 0;
    const uint8_t *w1 = nullptr, *w1_scale = nullptr, *w3 = nullptr, *w3_scale = nullptr;
  } ahead{static_cast<int>(blockIdx.x)};
  const auto enter = [&] {
    while (ahead.unit < units && (pieces == 0 || chosen[ahead.unit / strips].id < 0)) ahead.unit += static_cast<int>(gridDim.x);
    if (ahead.unit >= units) return;
    const Chosen& c = chosen[ahead.unit / strips];
    const int64_t piece = (static_cast<int64_t>(ahead.unit % strips) * chunks + first_chunk) * Piece::kPerChunk;
    ahead.piece = 0;
    ahead.w1 = c.w[0] + piece * Piece::kDataBytes;
    ahead.w3 = c.w[1] + piece * Piece::kDataBytes;
    if constexpr (Piece::kScaleBytes != 0) {
      ahead.w1_scale = c.scale[0] + piece * Piece::kScaleBytes;
      ahead.w3_scale = c.scale[1] + piece * Piece::kScaleBytes;
    }
  };
  const auto copy_next = [&](uint32_t slot) {
    if (ahead.unit < units) {
      copy_piece<kFormat>(slot, ahead.w1, ahead.w1_scale, lane);
      copy_piece<kFormat>(slot + kBytes, ahead.w3, ahead.w3_scale, lane);
      ahead.w1 += Piece::kDataBytes;
      ahead.w3 += Piece::kDataBytes;
      ahead.w1_scale += Piece::kScaleBytes;
      ahead.w3_scale += Piece::kScaleBytes;
      if (++ahead.piece == pieces) {
        ahead.unit += static_cast<int>(gridDim.x);
        enter();
      }
    }
    commit_copies();
  };
  enter();
#pragma unroll
  for (int i = 0; i < kUpDepth; ++i) copy_next(ring + i * 2 * kBytes);
  make_operand<kOperand>(a.x, first_chunk, last_chunk, chunks, terms, scales, lane);
  __syncwarp();

  const uint32_t terms_at = (g < kTerms ? shared_address(terms) + (g * chunks + first_chunk) * kTermBytes : shared_address(zeros) + kZeroShift) + 8 * t;
  const uint32_t chunk_stride = g < kTerms ? kTermBytes : 0;
  int slot = 0, buffer = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const int k = unit / strips, strip = unit % strips;
    const Chosen& c = chosen[k];
    if (c.id < 0) continue;
    float gate_scale = 0, up_scale = 0;
    if (kFormat == WeightFormat::kFp8Block && lane < last_chunk - first_chunk) {
      const int64_t at = static_cast<int64_t>(strip) / (kFp8WeightBlock / kStripRows) * chunks + first_chunk + lane;
      gate_scale = decode_e8m0(c.scale[0][at]);
      up_scale = decode_e8m0(c.scale[1][at]);
    }
    float both[2][4] = {};  // gate, up
    for (int piece = 0; piece < pieces; ++piece) {
      wait_copies<kUpDepth - 1>();
      __syncwarp();
      const int in_group = piece / Piece::kPerChunk, chunk = first_chunk + in_group;
      const uint32_t at = ring + slot * 2 * kBytes, b_at = terms_at + in_group * chunk_stride + piece % Piece::kPerChunk * (kTermBytes / Piece::kPerChunk);
      if constexpr (kFormat == WeightFormat::kMxfp4 && kTerms == 1) {
        mxfp4_column<2>(both, at, lane, scales[chunk], b_at);
      } else {
        const auto load_b = [&](int, int step) { return load_shared8(b_at + step * 32); };
        const float2 x_scale[1] = {{scales[chunk], scales[chunk]}};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float one[1][4] = {{both[i][0], both[i][1], both[i][2], both[i][3]}};
          piece_product<kFormat, 1>(one, at + i * kBytes, lane, shuffle_from(i == 0 ? gate_scale : up_scale, in_group), x_scale, load_b);
#pragma unroll
          for (int j = 0; j < 4; ++j) both[i][j] = one[0][j];
        }
      }
      __syncwarp();
      copy_next(at);
      slot = slot + 1 == kUpDepth ? 0 : slot + 1;
    }
    float* to = sums + buffer * 2 * kSumFloats;
    put_sums(to + warp * kStripRows * 4, both[0], g, t);
    put_sums(to + kSumFloats + warp * kStripRows * 4, both[1], g, t);
    __syncthreads();
    if (threadIdx.x < kStripRows) {
      const float gate_value = add_groups(to + threadIdx.x * 4, kStripRows * 4, kTerms),
                  up_value = add_groups(to + kSumFloats + threadIdx.x * 4, kStripRows * 4, kTerms);
      a.act[k * a.table.ffn_dim + strip * kStripRows + threadIdx.x] = __fmul_rn(swiglu_value(gate_value, up_value, a.limit), c.weight);
    }
    buffer ^= 1;
  }
}

template <WeightFormat kFormat, Operand kOperand>
__global__ void __launch_bounds__(kThreads* kDownSets<kFormat>, kDownBlocks<kFormat>) expert_down_row(const __grid_constant__ RowArgs a) {
  using Piece = PieceOf<kFormat>;
  constexpr int kBytes = kPieceBytes<kFormat>, kTerms = operand_terms(kOperand);
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Chosen chosen[kMaxTopk];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % kWarps, set = static_cast<int>(threadIdx.x) / kThreads,
            g = lane / 4, t = lane % 4;
  const int chunks = static_cast<int>(a.table.ffn_dim / kChunkColumns), strips = static_cast<int>(a.table.hidden_dim / kStripRows);
  const int first_chunk = static_cast<int>(group_begin(warp, chunks)), last_chunk = static_cast<int>(group_begin(warp + 1, chunks));
  const int pieces = (last_chunk - first_chunk) * Piece::kPerChunk;
  float* sums = reinterpret_cast<float*>(shared);  // [topk][groups][16][4]
  float* scales = sums + a.topk * kWarps * kStripRows * 4;
  uint8_t* terms = reinterpret_cast<uint8_t*>(scales + (a.topk * chunks + 31) / 32 * 32);
  uint32_t* zeros = reinterpret_cast<uint32_t*>(terms + a.topk * kTerms * chunks * kTermBytes);
  const uint32_t ring = shared_address(zeros) + kZeroBytes + (set * kWarps + warp) * kDownDepth * kBytes;
  if (threadIdx.x < kZeroBytes / 4) zeros[threadIdx.x] = 0;

  if (threadIdx.x < a.topk) {
    const int32_t e = a.experts[threadIdx.x];  // older than the previous kernel, which waited for it
    Chosen& c = chosen[threadIdx.x];
    c.id = e;
    if (e >= 0) {
      c.w[0] = a.table.w2[e];
      c.scale[0] = kFormat == WeightFormat::kBF16 ? nullptr : a.table.w2_scale[e];
    }
  }
  __syncthreads();
  struct {
    int strip, k, piece = 0;
    const uint8_t *w2 = nullptr, *w2_scale = nullptr;
  } ahead{static_cast<int>(blockIdx.x), set - kDownSets<kFormat>};
  const auto enter = [&] {  // the set's next chosen expert of the strip, or of a later strip
    if (pieces == 0) ahead.strip = strips;
    while (ahead.strip < strips) {
      do {
        ahead.k += kDownSets<kFormat>;
      } while (ahead.k < a.topk && chosen[ahead.k].id < 0);
      if (ahead.k < a.topk) break;
      ahead.strip += static_cast<int>(gridDim.x);
      ahead.k = set - kDownSets<kFormat>;
    }
    if (ahead.strip >= strips) return;
    const int64_t piece = (static_cast<int64_t>(ahead.strip) * chunks + first_chunk) * Piece::kPerChunk;
    ahead.piece = 0;
    ahead.w2 = chosen[ahead.k].w[0] + piece * Piece::kDataBytes;
    if constexpr (Piece::kScaleBytes != 0) ahead.w2_scale = chosen[ahead.k].scale[0] + piece * Piece::kScaleBytes;
  };
  const auto copy_next = [&](uint32_t slot) {
    if (ahead.strip < strips) {
      copy_piece<kFormat>(slot, ahead.w2, ahead.w2_scale, lane);
      ahead.w2 += Piece::kDataBytes;
      ahead.w2_scale += Piece::kScaleBytes;
      if (++ahead.piece == pieces) enter();
    }
    commit_copies();
  };
  bool any = false;
  for (int k = set; k < a.topk; k += kDownSets<kFormat>) any |= chosen[k].id >= 0;
  if (!any) ahead.strip = strips;
  enter();
#pragma unroll
  for (int i = 0; i < kDownDepth; ++i) copy_next(ring + i * kBytes);
  wait_previous();
  allow_next();
  for (int k = set; k < a.topk; k += kDownSets<kFormat>) {
    if (chosen[k].id >= 0) {
      make_operand<kOperand>(a.act + k * a.table.ffn_dim, first_chunk, last_chunk, chunks, terms + k * kTerms * chunks * kTermBytes, scales + k * chunks, lane);
    }
  }
  __syncwarp();

  int slot = 0;
  for (int strip = static_cast<int>(blockIdx.x); strip < strips; strip += static_cast<int>(gridDim.x)) {
    for (int k = set; k < a.topk; k += kDownSets<kFormat>) {
      if (chosen[k].id < 0) continue;
      float fp8_scale = 0;
      if (kFormat == WeightFormat::kFp8Block && lane < last_chunk - first_chunk) {
        fp8_scale = decode_e8m0(chosen[k].scale[0][static_cast<int64_t>(strip) / (kFp8WeightBlock / kStripRows) * chunks + first_chunk + lane]);
      }
      const uint32_t terms_at =
          (g < kTerms ? shared_address(terms + ((k * kTerms + g) * chunks + first_chunk) * kTermBytes) : shared_address(zeros) + kZeroShift) + 8 * t;
      const uint32_t chunk_stride = g < kTerms ? kTermBytes : 0;
      float sum[1][4] = {};
      for (int piece = 0; piece < pieces; ++piece) {
        wait_copies<kDownDepth - 1>();
        __syncwarp();
        const int in_group = piece / Piece::kPerChunk, chunk = first_chunk + in_group;
        const uint32_t at = ring + slot * kBytes, b_at = terms_at + in_group * chunk_stride + piece % Piece::kPerChunk * (kTermBytes / Piece::kPerChunk);
        if constexpr (kFormat == WeightFormat::kMxfp4 && kTerms == 1) {
          mxfp4_column<1>(sum, at, lane, scales[k * chunks + chunk], b_at);
        } else {
          const auto load_b = [&](int, int step) { return load_shared8(b_at + step * 32); };
          const float2 x_scale[1] = {{scales[k * chunks + chunk], scales[k * chunks + chunk]}};
          piece_product<kFormat, 1>(sum, at, lane, shuffle_from(fp8_scale, in_group), x_scale, load_b);
        }
        __syncwarp();
        copy_next(at);
        slot = slot + 1 == kDownDepth ? 0 : slot + 1;
      }
      put_sums(sums + (k * kWarps + warp) * kStripRows * 4, sum[0], g, t);
    }
    __syncthreads();
    if (threadIdx.x < kStripRows) {
      float* y = a.y + strip * kStripRows + threadIdx.x;
      float total = *y;
      for (int k = 0; k < a.topk; ++k) {
        if (chosen[k].id >= 0) total = __fadd_rn(total, add_groups(sums + k * kWarps * kStripRows * 4 + threadIdx.x * 4, kStripRows * 4, kTerms));
      }
      *y = total;
    }
    __syncthreads();
  }
}

template <WeightFormat kFormat, Operand kOperand>
Status run_row(GpuContext& gpu, const RowArgs& args) {
  constexpr int kTerms = operand_terms(kOperand);
  const int up_chunks = static_cast<int>(args.table.hidden_dim / kChunkColumns), down_chunks = static_cast<int>(args.table.ffn_dim / kChunkColumns);
  const int sum_bytes = kWarps * kStripRows * 4 * 4;
  const auto round32 = [](int v) { return (v + 31) / 32 * 32; };
  const int up_bytes = 4 * sum_bytes + 4 * round32(up_chunks) + kTerms * up_chunks * kTermBytes + kZeroBytes + kWarps * kUpDepth * 2 * kPieceBytes<kFormat>;
  const int down_bytes = args.topk * sum_bytes + 4 * round32(args.topk * down_chunks) + args.topk * kTerms * down_chunks * kTermBytes + kZeroBytes +
                         kDownSets<kFormat> * kWarps * kDownDepth * kPieceBytes<kFormat>;
  // 24 warps a multiprocessor: decoding is bound by issue, which wants warps.
  const auto blocks = [&](int64_t units, int64_t per_multiprocessor) { return std::min(units, per_multiprocessor * gpu.properties.multiprocessors); };
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (up_row)", expert_up_row<kFormat, kOperand>,
                              {.blocks_x = blocks(args.topk * args.table.ffn_dim / kStripRows, 3), .threads = kThreads, .shared_bytes = up_bytes}, args));
  return launch(
      gpu, "moe_experts (down_row)", expert_down_row<kFormat, kOperand>,
      {.blocks_x = blocks(args.table.hidden_dim / kStripRows, kDownBlocks<kFormat>), .threads = kThreads * kDownSets<kFormat>, .shared_bytes = down_bytes},
      args);
}

}  // namespace

Status moe_experts_row(GpuContext& gpu, const MoeExpertsArgs& a) {
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(4 * a.experts.cols * a.table.ffn_dim));
  const RowArgs args = {a.table, a.x.data, a.experts.data, a.weights.data, static_cast<int>(a.experts.cols), a.limit, reinterpret_cast<float*>(scratch),
                        a.y.data};
  switch (expert_operand(a)) {
    case Operand::kE4M3:
      return a.table.format == WeightFormat::kMxfp4 ? run_row<WeightFormat::kMxfp4, Operand::kE4M3>(gpu, args)
                                                    : run_row<WeightFormat::kFp8Block, Operand::kE4M3>(gpu, args);
    case Operand::kBf16:
      return a.table.format == WeightFormat::kMxfp4 ? run_row<WeightFormat::kMxfp4, Operand::kBf16>(gpu, args)
                                                    : run_row<WeightFormat::kFp8Block, Operand::kBf16>(gpu, args);
    case Operand::kF16x2:
      return a.table.format == WeightFormat::kMxfp4 ? run_row<WeightFormat::kMxfp4, Operand::kF16x2>(gpu, args)
                                                    : run_row<WeightFormat::kFp8Block, Operand::kF16x2>(gpu, args);
    case Operand::kBf16x3: return run_row<WeightFormat::kBF16, Operand::kBf16x3>(gpu, args);
  }
  return ok_status();
}

}  // namespace dsv4::gpu
