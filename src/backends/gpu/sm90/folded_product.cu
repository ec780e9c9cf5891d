// Products of many rows (prefill) with FP8 weights in strips and E4M3 activations, with all scales folded into BF16 operands: E4M3 times a power of two is
// exact in bfloat16, so the tensor cores' float32 runs through 16 chunks at a time. From 256 rows on a row's bits may depend on how many there are.
//
// A block stays on its multiprocessor and takes one tile after another: 256 rows of a weight and a pass of 128 rows of x. Four warps keep a ring of chunks in
// shared memory filled, weights and operand B, also beyond the end of a tile. Eight warps multiply: each owns a strip of either half of the tile and decodes
// half a chunk of one while a product with the other runs.
// Shared memory: kDepth stages.
#include "backends/gpu/portable/codec.h"
#include "backends/gpu/sm90/activation.h"
#include "backends/gpu/sm90/bulk_copy.h"
#include "backends/gpu/sm90/products.h"
#include "backends/gpu/sm90/warpgroup.h"

namespace dsv4::gpu {
namespace {

constexpr int kTiles = kFoldedPassRows / 8;
constexpr int kWarps = 8;  // that multiply
constexpr int kStrips = 2 * kWarps;
constexpr int kConsumers = kWarps * 32;
constexpr int kCopyWarps = 4;
constexpr int kThreads = kConsumers + kCopyWarps * 32;
constexpr int kTileBytes = 2048;  // eight rows of a chunk
constexpr int kOperandAt = kStrips * kFp8ChunkBytes;
constexpr int kOperandBytes = kTiles * kTileBytes;
constexpr int kStageBytes = kOperandAt + kOperandBytes;
constexpr int kDepth = 3;
// The tensor cores cut what they add, so errors grow with the length of a sum: after so many chunks it is added onto y and starts again. Against float64:
// 2.1e-6 after 16 chunks, 9.1e-6 after 64.
constexpr int kSumChunks = 16;
static_assert(kDepth * kStageBytes + 1024 <= 227 * 1024);

struct PackArgs {
  Rows<const float> x;
  int64_t rows;
  int chunks;
  uint8_t* out;
};

// A block takes a chunk of a pass, a warp eight rows: [pass][chunk][tile][step][core matrix][16 bytes]. Rows beyond the last are zeros.
__global__ void __launch_bounds__(kTiles * 32) pack(const __grid_constant__ PackArgs a) {
  constexpr int kStepWords = 64 + 4;  // of a tile in shared memory: padded against bank conflicts
  __shared__ __align__(16) uint32_t turned[kTiles][8 * kStepWords];
  wait_previous();
  allow_next();
  const int64_t pass = blockIdx.x / a.chunks;
  const int chunk = static_cast<int>(blockIdx.x % a.chunks), tile = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float4 v[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const int64_t row = pass * kFoldedPassRows + 8 * tile + c;
    v[c] = {0, 0, 0, 0};
    if (row < a.rows) v[c] = load_four(a.x.row(row) + chunk * kChunkColumns + 4 * lane);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const uint2 pairs = folded_bf16(activation_block<Operand::kE4M3>(v[c]));
    uint32_t* to = &turned[tile][lane / 4 * kStepWords + 4 * c + lane % 4];
    to[0] = pairs.x;
    to[32] = pairs.y;
  }
  __syncwarp();
  uint8_t* const to = a.out + static_cast<int64_t>(blockIdx.x) * kOperandBytes + tile * kTileBytes;
#pragma unroll
  for (int i = 0; i < kTileBytes / 512; ++i) {
    const int piece = 32 * i + lane;
    *reinterpret_cast<uint4*>(to + piece * 16) = *reinterpret_cast<const uint4*>(&turned[tile][piece / 16 * kStepWords + piece % 16 * 4]);
  }
}

struct Barriers {
  uint64_t full[kDepth], empty[kDepth];
};

// Tiles of one weight lie side by side over the passes: the weight is read from memory once.
struct Where {
  const FoldedJob* job;
  int64_t strip;  // first of the tile
  int pass;
};
__device__ Where locate(const FoldedArgs& a, int item) {
  const int tile = item / a.passes;
  int j = 0;
  while (j + 1 < a.num_jobs && tile >= a.jobs[j + 1].first_tile) ++j;
  return {&a.jobs[j], static_cast<int64_t>(tile - a.jobs[j].first_tile) * kStrips, item % a.passes};
}

// Each of four warps brings four strips of the tile and a quarter of the operand. Lanes go one after another, so there are few to a warp: 0 to 3 the
// strips, 4 the operand.
__device__ void produce(const FoldedArgs& a, uint32_t full, uint32_t empty, uint32_t ring, int items) {
  constexpr int kWarpStrips = kStrips / kCopyWarps;
  constexpr uint32_t kPart = kOperandBytes / kCopyWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 - kWarps, slot = warp * kWarpStrips + lane;
  if (lane > kWarpStrips) return;
  const bool operand = lane == kWarpStrips;
  const uint32_t to = ring + (operand ? kOperandAt + warp * kPart : slot * kFp8ChunkBytes);
  const uint32_t bytes = operand ? kPart : kFp8ChunkBytes, advance = operand ? kOperandBytes : kFp8ChunkBytes;
  uint32_t stage = 0, parity = 1;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const Where w = locate(a, item);
    // Beyond the last strip that one comes again; nobody keeps its sums.
    const int64_t strip = w.strip + slot < w.job->strips ? w.strip + slot : w.job->strips - 1;
    const uint8_t* from =
        operand ? a.x + static_cast<int64_t>(w.pass) * a.chunks * kOperandBytes + warp * kPart : w.job->data + strip * a.chunks * kFp8ChunkBytes;
    for (int chunk = 0; chunk < a.chunks; ++chunk) {
      wait_barrier(empty + stage * 8, parity);
      if (lane == 0) arrive_expecting(full + stage * 8, kWarpStrips * kFp8ChunkBytes + kPart);
      __syncwarp((2u << kWarpStrips) - 1u);
      bulk_load(to + stage * kStageBytes, from, bytes, full + stage * 8);
      from += advance;
      if (++stage == kDepth) {
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
// Operand A of half a chunk of a strip.
__device__ void decode(const uint4 (&v)[2], uint32_t code, OperandA (&w)[4]) {
  constexpr uint32_t kMost = 134;  // the largest scale whose factor is finite
  const uint32_t factor = (min(code, kMost) + 120u) * 0x00800080u;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Quad x = folded_quad(v[i].x, factor), y = folded_quad(v[i].y, factor), z = folded_quad(v[i].z, factor), u = folded_quad(v[i].w, factor);
    w[2 * i] = {{x.low, y.low, x.high, y.high}};
    w[2 * i + 1] = {{z.low, u.low, z.high, u.high}};
  }
  if (code > kMost) {
    const uint32_t more = (code - kMost + 127u) * 0x00800080u;
#pragma unroll
    for (int i = 0; i < 16; ++i) asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(w[i / 4].r[i % 4]) : "r"(more));
  }
}

__device__ void products(float (&sum)[kTiles][4], const OperandA (&w)[4], uint32_t operand) {
  const uint64_t b = operand_b(operand, kTileBytes);
  const uint32_t low = static_cast<uint32_t>(b);
  warpgroup_begin();
#pragma unroll
  for (int i = 0; i < 4; ++i) Warpgroup<true, kTiles>::product(sum, w[i], b >> 32 << 32 | (low + i * (256 >> 4)), 1);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the last batch are done.
__device__ void wait_products_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

__device__ void consume(const FoldedArgs& a, uint32_t full, uint32_t empty, uint32_t ring, int items) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, t = lane % 4;
  const uint32_t own = ring + warp * kFp8ChunkBytes + lane * 16;
  uint32_t stage = 0, parity = 0;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const Where where = locate(a, item);
    const int64_t strips = where.job->strips;
    // Strip `warp` of both halves of the tile; a half is a block of the scales.
    const uint8_t* const low_scales = where.job->scale + where.strip / kWarps * a.chunks;
    const uint8_t* const high_scales = low_scales + (where.strip + kWarps < strips ? a.chunks : 0);
    uint32_t held = 0;  // lane i: of the 32 chunks under way, chunk i's two
    for (int first = 0; first < a.chunks; first += kSumChunks) {
      float low[kTiles][4] = {}, high[kTiles][4] = {};
      const int end = min(first + kSumChunks, a.chunks);
      for (int chunk = first; chunk < end; ++chunk) {
        OperandA w_low[4], w_high[4];
        if (chunk % 32 == 0 && chunk + lane < a.chunks) held = low_scales[chunk + lane] | high_scales[chunk + lane] << 8;
        const uint32_t codes = shuffle_from(held, chunk % 32), low_code = codes & 255u, high_code = codes >> 8;
        wait_barrier(full + stage * 8, parity);
        const uint32_t at = own + stage * kStageBytes, operand = ring + stage * kStageBytes + kOperandAt;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          decode({load_shared16(at + half * 1024), load_shared16(at + half * 1024 + 512)}, low_code, w_low);
          products(low, w_low, operand + half * 4 * 256);
          wait_products_but_one();
          if (half == 0 && chunk != first && lane == 0) arrive(empty + (stage == 0 ? kDepth - 1 : stage - 1) * 8);
          const uint32_t upper = at + kWarps * kFp8ChunkBytes + half * 1024;
          decode({load_shared16(upper), load_shared16(upper + 512)}, high_code, w_high);
          products(high, w_high, operand + half * 4 * 256);
          wait_products_but_one();
        }
        if (++stage == kDepth) {
          stage = 0;
          parity ^= 1;
        }
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (lane == 0) arrive(empty + (stage == 0 ? kDepth - 1 : stage - 1) * 8);
      const int64_t strip = where.strip + warp, first_row = static_cast<int64_t>(where.pass) * kFoldedPassRows;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int64_t row = first_row + 8 * i + 2 * t + c;
          if (row >= a.rows) continue;
          float* const to = where.job->y.row(row) + strip * kStripRows + g;
          // Nobody else adds here, and one thread's additions keep their order; they need no answer.
          const auto put = [&](int at, float v) {
            if (first == 0) {
              to[at] = v;
            } else {
              atomicAdd(to + at, v);
            }
          };
          if (strip < strips) {
            put(0, low[i][c]);
            put(8, low[i][c + 2]);
          }
          if (strip + kWarps < strips) {
            put(kWarps * kStripRows, high[i][c]);
            put(kWarps * kStripRows + 8, high[i][c + 2]);
          }
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) folded_product(const __grid_constant__ FoldedArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Barriers barriers;
  const uint32_t full = shared_address(barriers.full), empty = shared_address(barriers.empty), ring = shared_address(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kDepth; ++i) {
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
    produce(a, full, empty, ring, items);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume(a, full, empty, ring, items);
  }
}

}  // namespace

Status launch_folded_product(GpuContext& gpu, Rows<const float> x, const FoldedArgs& a) {
  const PackArgs pack_x = {x, a.rows, a.chunks, const_cast<uint8_t*>(a.x)};
  DSV4_RETURN_IF_ERROR(launch(gpu, "linear (pack)", pack, {.blocks_x = static_cast<int64_t>(a.passes) * a.chunks, .threads = kTiles * 32}, pack_x));
  const int64_t items = static_cast<int64_t>(a.weight_tiles) * a.passes;
  return launch(
      gpu, "linear (folded_product)", folded_product,
      {.blocks_x = items < gpu.properties.multiprocessors ? items : gpu.properties.multiprocessors, .threads = kThreads, .shared_bytes = kDepth * kStageBytes},
      a);
}

}  // namespace dsv4::gpu
