// Products of many rows (prefill) with FP8 or BF16 weights in strips, on BF16 warpgroup products: all operands are exact in bfloat16 with their scales folded
// in, as E4M3 times a power of two is; activations that are not rounded are three terms. So the tensor cores' float32 runs through 2,048 columns of k at a
// time without a look at scales. From 512 rows on a row's bits may depend on how many there are.
//
// A block stays on its multiprocessor and takes one tile after another: 256 rows of a weight and a pass of rows of x. Four warps keep a ring of pieces in
// shared memory filled, weights and operand B, also beyond the end of a tile. Eight warps multiply: each owns a strip of either half of the tile and decodes
// four steps of one while a product with the other runs.
// Shared memory: the ring. A piece is what 2,048 bytes hold of a strip: a chunk of FP8, half a chunk of BF16.
// At 2,048 rows 520 TFLOP/s with k = 1,024, 66 % of what a product library reaches on this card. Bound by the tensor cores and by what two warps of a
// scheduler leave open between products; below k = 2,048 by the ends of tiles.
#include "backends/gpu/portable/codec.h"
#include "backends/gpu/sm90/activation.h"
#include "backends/gpu/sm90/bulk_copy.h"
#include "backends/gpu/sm90/products.h"
#include "backends/gpu/sm90/warpgroup.h"

namespace dsv4::gpu {
namespace {

constexpr int kWarps = 8;  // that multiply
constexpr int kStrips = kFoldedTileStrips;
constexpr int kConsumers = kWarps * 32;
constexpr int kCopyWarps = 4;
constexpr int kThreads = kConsumers + kCopyWarps * 32;
constexpr int kPieceBytes = 2048;
static_assert(kStrips == 2 * kWarps && kPieceBytes == kFp8ChunkBytes && kPieceBytes == kBf16ChunkBytes / 2);

template <WeightFormat kFormat, int kTerms>
struct Shape {
  static constexpr int kPieces = kFormat == WeightFormat::kBF16 ? 2 : 1;  // of a chunk
  static constexpr int kSteps = 8 / kPieces;                              // of a piece
  static constexpr int kRowTiles = folded_pass_rows(kTerms) / 8, kTiles = kRowTiles * kTerms;
  static constexpr int kTileBytes = kSteps * 256;  // eight columns of operand B
  static constexpr int kOperandBytes = kTiles * kTileBytes, kOperandAt = kStrips * kPieceBytes;
  static constexpr int kStageBytes = kOperandAt + kOperandBytes;
  static constexpr int kDepth = kPieces == 2 ? 4 : 3;
  // The tensor cores cut what they add, so errors grow with the length of a sum: after so many pieces it is added onto y and starts again. Against
  // float64: 2.1e-6 after 2,048 columns, 9.1e-6 after 8,192.
  static constexpr int kSumPieces = 16 * kPieces;
  static_assert(kStageBytes % 128 == 0 && kOperandBytes % (16 * kCopyWarps) == 0 && kDepth * kStageBytes + 1024 <= 227 * 1024);
};

struct PackArgs {
  Rows<const float> x;
  int64_t rows;
  int chunks;  // of x
  uint8_t* out;
};

// A block takes a chunk of a pass, a warp eight rows: [pass][piece][tile][step][core matrix][16 bytes], tiles by terms. Rows beyond the last are zeros.
template <WeightFormat kFormat, Operand kOperand>
__global__ void __launch_bounds__(Shape<kFormat, operand_terms(kOperand)>::kRowTiles * 32) pack(const __grid_constant__ PackArgs a) {
  constexpr int kTerms = operand_terms(kOperand);
  using S = Shape<kFormat, kTerms>;
  constexpr int kStepWords = 64 + 4;  // of a tile in shared memory: padded against bank conflicts
  __shared__ __align__(16) uint32_t turned[S::kRowTiles][8 * kStepWords];
  wait_previous();
  allow_next();
  const int64_t pass = blockIdx.x / a.chunks;
  const int chunk = static_cast<int>(blockIdx.x % a.chunks), tile = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint2 values[kTerms][8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const int64_t row = pass * S::kRowTiles * 8 + 8 * tile + c;
    float4 v = {0, 0, 0, 0};
    if (row < a.rows) v = load_four(a.x.row(row) + chunk * kChunkColumns + 4 * lane);
    if constexpr (kTerms == 1) {
      values[0][c] = folded_bf16(activation_block<kOperand>(v));
    } else {
      const ActivationBlock block = activation_block<kOperand>(v);
#pragma unroll
      for (int i = 0; i < kTerms; ++i) values[i][c] = block.term[i];
    }
  }
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      uint32_t* to = &turned[tile][lane / 4 * kStepWords + 4 * c + lane % 4];
      to[0] = values[term][c].x;
      to[32] = values[term][c].y;
    }
    __syncwarp();
    uint8_t* const to = a.out + static_cast<int64_t>(blockIdx.x) * S::kPieces * S::kOperandBytes + (term * S::kRowTiles + tile) * S::kTileBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int part = 32 * i + lane, step = part / 16;
      *reinterpret_cast<uint4*>(to + step / S::kSteps * S::kOperandBytes + step % S::kSteps * 256 + part % 16 * 16) =
          *reinterpret_cast<const uint4*>(&turned[tile][step * kStepWords + part % 16 * 4]);
    }
  }
}

struct Barriers {
  uint64_t full[4], empty[4];
};

// Tiles of one weight lie side by side over the passes: the weight is read from memory once.
struct Where {
  const FoldedJob* job;
  int64_t strip, end;  // first of the tile, first beyond the tile's group
  int group, pass;
};
__device__ Where locate(const FoldedArgs& a, int item) {
  const int tile = item / a.passes;
  int j = 0;
  while (j + 1 < a.num_jobs && tile >= a.jobs[j + 1].first_tile) ++j;
  const FoldedJob& job = a.jobs[j];
  const int group = (tile - job.first_tile) / job.tiles_per_group, in_group = (tile - job.first_tile) % job.tiles_per_group;
  const int64_t begin = static_cast<int64_t>(group) * job.strips_per_group;
  return {&job, begin + in_group * kStrips, begin + job.strips_per_group, group, item % a.passes};
}

// Each of four warps brings four strips of the tile and a quarter of the operand. Lanes go one after another, so there are few to a warp: 0 to 3 the
// strips, 4 the operand.
template <class S>
__device__ void produce(const FoldedArgs& a, uint32_t full, uint32_t empty, uint32_t ring, int items) {
  constexpr int kWarpStrips = kStrips / kCopyWarps;
  constexpr uint32_t kPart = S::kOperandBytes / kCopyWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 - kWarps, slot = warp * kWarpStrips + lane;
  if (lane > kWarpStrips) return;
  const bool operand = lane == kWarpStrips;
  const uint32_t to = ring + (operand ? S::kOperandAt + warp * kPart : slot * kPieceBytes);
  const uint32_t bytes = operand ? kPart : kPieceBytes, advance = operand ? S::kOperandBytes : kPieceBytes;
  const int pieces = a.chunks * S::kPieces;
  uint32_t stage = 0, parity = 1;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const Where w = locate(a, item);
    // Beyond the last strip that one comes again; nobody keeps its sums.
    const int64_t strip = w.strip + slot < w.end ? w.strip + slot : w.end - 1;
    const uint8_t* from = operand ? a.x + (static_cast<int64_t>(w.pass) * a.x_chunks + w.group * a.chunks) * S::kPieces * S::kOperandBytes + warp * kPart
                                  : w.job->data + strip * pieces * kPieceBytes;
    for (int piece = 0; piece < pieces; ++piece) {
      wait_barrier(empty + stage * 8, parity);
      if (lane == 0) arrive_expecting(full + stage * 8, kWarpStrips * kPieceBytes + kPart);
      __syncwarp((2u << kWarpStrips) - 1u);
      bulk_load(to + stage * S::kStageBytes, from, bytes, full + stage * 8);
      from += advance;
      if (++stage == S::kDepth) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// Two E4M3 values, in the high byte of each half, as bfloat16 times `factor` * 2^-120: the seven bits of exponent and mantissa lie where bfloat16 has its
// lowest; its subnormal numbers serve E4M3's. The code of NaN is 480 here.
__device__ uint32_t folded_pair(uint32_t high_bytes, uint32_t factor) {
  const uint32_t pair = (high_bytes >> 4 & 0x07f007f0u) | (high_bytes & 0x80008000u);
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(factor));
  return out;
}
struct Quad {
  uint32_t low, high;
};
__device__ Quad folded_quad(uint32_t word, uint32_t factor) {
  return {folded_pair(__byte_perm(word, 0, 0x1404), factor), folded_pair(__byte_perm(word, 0, 0x3424), factor)};
}
// Operand A of four steps of a strip, from `at` in shared memory.
template <WeightFormat kFormat>
__device__ void decode(uint32_t at, uint32_t code, OperandA (&w)[4]) {
  if constexpr (kFormat == WeightFormat::kBF16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = bf16_operand(load_shared16(at + i * 512));
  } else {
    constexpr uint32_t kMost = 134;  // the largest scale whose factor is finite
    const uint32_t factor = (min(code, kMost) + 120u) * 0x00800080u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = load_shared16(at + i * 512);
      const Quad x = folded_quad(v.x, factor), y = folded_quad(v.y, factor), z = folded_quad(v.z, factor), u = folded_quad(v.w, factor);
      w[2 * i] = {{x.low, y.low, x.high, y.high}};
      w[2 * i + 1] = {{z.low, u.low, z.high, u.high}};
    }
    if (code > kMost) {
      const uint32_t more = (code - kMost + 127u) * 0x00800080u;
#pragma unroll
      for (int i = 0; i < 16; ++i) asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(w[i / 4].r[i % 4]) : "r"(more));
    }
  }
}

template <class S>
__device__ void products(float (&sum)[S::kTiles][4], const OperandA (&w)[4], uint32_t operand) {
  const uint64_t b = operand_b(operand, S::kTileBytes);
  const uint32_t low = static_cast<uint32_t>(b);
  warpgroup_begin();
#pragma unroll
  for (int i = 0; i < 4; ++i) Warpgroup<true, S::kTiles>::product(sum, w[i], b >> 32 << 32 | (low + i * (256 >> 4)), 1);
  commit_batch();
}

// y (+)= the terms' sums of two strips against a pass. Nobody else adds to these places, and one thread's additions keep their order.
template <class S>
__device__ void put_sums(const FoldedArgs& a, const Where& w, bool add, const float (&low)[S::kTiles][4], const float (&high)[S::kTiles][4], int64_t strip) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const bool has_low = strip < w.end, has_high = strip + kWarps < w.end;
  const auto total = [](const float(&sum)[S::kTiles][4], int i, int c) {
    if constexpr (S::kTiles == S::kRowTiles) return sum[i][c];
    return __fadd_rn(sum[i][c], __fadd_rn(sum[(i + S::kRowTiles) % S::kTiles][c], sum[(i + 2 * S::kRowTiles) % S::kTiles][c]));
  };
  const int64_t first_row = static_cast<int64_t>(w.pass) * S::kRowTiles * 8 + 2 * t;
  float* to = w.job->y.row(first_row) + strip * kStripRows + g;
  const int64_t next = w.job->y.stride, next_tile = 8 * next;
#pragma unroll
  for (int i = 0; i < S::kRowTiles; ++i, to += next_tile) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (first_row + 8 * i + c >= a.rows) continue;
      float* const at = c == 0 ? to : to + next;
      const auto put = [&](int place, float v) {
        if (add) {
          atomicAdd(at + place, v);  // needs no answer
        } else {
          at[place] = v;
        }
      };
      if (has_low) {
        put(0, total(low, i, c));
        put(8, total(low, i, c + 2));
      }
      if (has_high) {
        put(kWarps * kStripRows, total(high, i, c));
        put(kWarps * kStripRows + 8, total(high, i, c + 2));
      }
    }
  }
}

template <WeightFormat kFormat, class S>
__device__ void consume(const FoldedArgs& a, uint32_t full, uint32_t empty, uint32_t ring, int items) {
  constexpr int kBlockStrips = kFp8WeightBlock / kStripRows;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, pieces = a.chunks * S::kPieces;
  const uint32_t own = ring + warp * kPieceBytes + lane * 16;
  uint32_t stage = 0, parity = 0;
  const auto leave = [&] {  // the stage before this one
    if (lane == 0) arrive(empty + (stage == 0 ? S::kDepth - 1 : stage - 1) * 8);
  };
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const Where where = locate(a, item);
    // Strip `warp` of both halves of the tile.
    const int64_t low_strip = where.strip + warp, high_strip = low_strip + kWarps, last = where.end - 1;
    const uint8_t* const low_scales = where.job->scale + (low_strip < last ? low_strip : last) / kBlockStrips * a.chunks;
    const uint8_t* const high_scales = where.job->scale + (high_strip < last ? high_strip : last) / kBlockStrips * a.chunks;
    uint32_t held = 0;  // lane i: of the 32 chunks under way, chunk i's two scales
    for (int first = 0; first < pieces; first += S::kSumPieces) {
      float low[S::kTiles][4] = {}, high[S::kTiles][4] = {};
      const int end = min(first + S::kSumPieces, pieces);
      for (int piece = first; piece < end; ++piece) {
        OperandA w_low[4], w_high[4];
        uint32_t codes = 0;
        if constexpr (kFormat == WeightFormat::kFp8Block) {
          if (piece % 32 == 0 && piece + lane < pieces) held = low_scales[piece + lane] | high_scales[piece + lane] << 8;
          codes = shuffle_from(held, piece % 32);
        }
        wait_barrier(full + stage * 8, parity);
        const uint32_t at = own + stage * S::kStageBytes, operand = ring + stage * S::kStageBytes + S::kOperandAt;
#pragma unroll
        for (int half = 0; half < S::kSteps / 4; ++half) {
          decode<kFormat>(at + half * 1024, codes & 255u, w_low);
          products<S>(low, w_low, operand + half * 4 * 256);
          wait_batches<1>();
          if (half == 0 && piece != first) leave();
          decode<kFormat>(at + kWarps * kPieceBytes + half * 1024, codes >> 8, w_high);
          products<S>(high, w_high, operand + half * 4 * 256);
          wait_batches<1>();
        }
        if (++stage == S::kDepth) {
          stage = 0;
          parity ^= 1;
        }
      }
      wait_batches<0>();
      leave();
      put_sums<S>(a, where, first != 0, low, high, low_strip);
    }
  }
}

template <WeightFormat kFormat, int kTerms>
__global__ void __launch_bounds__(kThreads, 1) folded_product(const __grid_constant__ FoldedArgs a) {
  using S = Shape<kFormat, kTerms>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Barriers barriers;
  const uint32_t full = shared_address(barriers.full), empty = shared_address(barriers.empty), ring = shared_address(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kDepth; ++i) {
      init_barrier(full + 8 * i, kCopyWarps);
      init_barrier(empty + 8 * i, kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_previous();
  allow_next();
  const int items = a.weight_tiles * a.passes;
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    produce<S>(a, full, empty, ring, items);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume<kFormat, S>(a, full, empty, ring, items);
  }
}

template <WeightFormat kFormat, Operand kOperand>
Status launch_folded(GpuContext& gpu, Rows<const float> x, const FoldedArgs& a) {
  constexpr int kTerms = operand_terms(kOperand);
  using S = Shape<kFormat, kTerms>;
  const PackArgs pack_x = {x, a.rows, a.x_chunks, const_cast<uint8_t*>(a.x)};
  DSV4_RETURN_IF_ERROR(
      launch(gpu, "linear (pack)", pack<kFormat, kOperand>, {.blocks_x = static_cast<int64_t>(a.passes) * a.x_chunks, .threads = S::kRowTiles * 32}, pack_x));
  const int64_t items = static_cast<int64_t>(a.weight_tiles) * a.passes, most = gpu.properties.multiprocessors;
  return launch(gpu, "linear (folded_product)", folded_product<kFormat, kTerms>,
                {.blocks_x = items < most ? items : most, .threads = kThreads, .shared_bytes = S::kDepth * S::kStageBytes}, a);
}

}  // namespace

Status launch_folded_product(GpuContext& gpu, WeightFormat format, Rows<const float> x, const FoldedArgs& a) {
  if (format == WeightFormat::kBF16) return launch_folded<WeightFormat::kBF16, Operand::kBf16x3>(gpu, x, a);
  if (a.operand == Operand::kE4M3) return launch_folded<WeightFormat::kFp8Block, Operand::kE4M3>(gpu, x, a);
  if (a.operand == Operand::kBf16) return launch_folded<WeightFormat::kFp8Block, Operand::kBf16>(gpu, x, a);
  return launch_folded<WeightFormat::kFp8Block, Operand::kBf16x3>(gpu, x, a);
}

}  // namespace dsv4::gpu
