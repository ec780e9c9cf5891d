// moe_experts for many rows (prefill), MXFP4 weights and E4M3 activations, on BF16 warpgroup products.
//
// Every operand is exact in bfloat16 with its scale in it: E2M1 has one bit behind the point, E4M3 three, scales are powers of two. So the products run
// through all of k without a look at scales, in the tensor cores' float32. (Below 256 rows the other kernels serve, whose order of additions differs.)
//   sort     (moe_sort.h): pairs by expert, in units of up to 96 columns
//   pack     the units' rows into operand form, [unit][chunk][tile][step][core matrix][16 bytes], so that a chunk of a unit is one copy
//   up       activations of the units, in the same form
//   down     out[pair]; combine: y[t] += out of the token's pairs, in order
// A block stays on its multiprocessor and takes one tile after another, whichever is next: a unit and 256 rows of weights, which are 128 rows of w1 and the
// same of w3, or 256 of w2. Four warps keep a ring of chunks in shared memory filled, weights and operand B, also beyond the end of a tile. Sixteen warps
// multiply, a strip each: while a product runs, the next half of a chunk is decoded into operand A. At the end the warps of w1 and w3 exchange halves.
// Shared memory: kDepth stages, then what warps exchange and a tile's activations on their way out.
// At 2,048 rows, 77 pairs an expert: 0.82 ms up and 0.41 ms down, 59 % of the tensor cores' time. Decoding bounds it: 236 instructions a strip and chunk in
// a warp, and while products read operand A and sums from the registers, a fifth of the other warps' issue slots is lost.
#include <algorithm>

#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/bulk_copy.h"
#include "backends/gpu/sm90/moe.h"
#include "backends/gpu/sm90/moe_sort.h"
#include "backends/gpu/sm90/warpgroup.h"

namespace dsv4::gpu {
namespace {

constexpr int kTiles = 12;  // most column tiles of a unit
constexpr int kColumns = kTiles * 8;
constexpr int kAlign = 16;  // columns of a unit are rounded up to this: even numbers of tiles
constexpr int kWarps = 16;  // that multiply
constexpr int kConsumers = kWarps * 32;
constexpr int kCopyWarps = 4;
constexpr int kThreads = kConsumers + kCopyWarps * 32;
constexpr int kTileBytes = 2048;    // eight columns of a chunk
constexpr int kChunkBytes = 256;    // one column of a chunk
constexpr int kStrips = kWarps;     // of a block
constexpr int kHalf = kStrips / 2;  // of w1 and as many of w3
constexpr int kScalesAt = kStrips * kMxfp4ChunkBytes;
constexpr int kOperandAt = kScalesAt + kStrips * kMxfp4ChunkScaleBytes;
constexpr int kWeightBytes = kOperandAt;
constexpr int kStageBytes = kOperandAt + kTiles * kTileBytes;
constexpr int kDepth = 4;
constexpr int kOutBytes = kWarps * 32 * (kTiles / 2) * 16;  // sums on their way between warps, then a tile's activations on theirs out
constexpr int kSharedBytes = kDepth * kStageBytes + kOutBytes;
static_assert(kStageBytes % 128 == 0 && kSharedBytes + 6144 <= 227 * 1024);

// Pair kPair of an mxfp4 word as bfloat16 times its scale, in three operations. The float16 pair times 2^-14 (strip_mxfp4_pair) is added to kBase, 96
// halves of the unit 2^-14 above a power of two: all eight magnitudes and signs become the last seven bits of the mantissa, 96 halves + the value in
// halves, where bfloat16 has its own seven. Read as bfloat16 it is (96 + value) 2^-53, and one fused operation makes it value * scale, exactly.
constexpr uint32_t kBase = 0x28402840u;
struct ScaleOf {
  uint32_t factor, rest;  // 2^53 * scale and -96 * scale, twice
};
// Right for scales up to 2^74.
__device__ ScaleOf scale_of(uint32_t scales, int q) {
  const uint32_t factor = __byte_perm(scales, 0, 0x4040 + 0x0101 * q) * 128u + 53u * 0x00800080u;
  return {factor, factor + (0x80408040u - 47u * 0x00800080u)};
}
template <int kPair>
__device__ uint32_t scaled_pair(uint32_t word, const ScaleOf& scale) {
  uint32_t out;
  asm("{.reg .b32 v; add.rn.f16x2 v, %1, %2; fma.rn.bf16x2 %0, v, %3, %4;}"
      : "=r"(out)
      : "r"(strip_mxfp4_pair(word, kPair)), "r"(kBase), "r"(scale.factor), "r"(scale.rest));
  return out;
}
// Operand A of half a chunk of a strip: the groups kFirst and kFirst + 1. `words`: of rows g, g + 8, for one group and the next.
template <int kFirst>
__device__ void decode(const uint4& words, const uint2& scales, OperandA (&w)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t low = i == 0 ? words.x : words.z, high = i == 0 ? words.y : words.w;
    const ScaleOf ls = scale_of(scales.x, kFirst + i), hs = scale_of(scales.y, kFirst + i);
    w[2 * i] = {{scaled_pair<0>(low, ls), scaled_pair<0>(high, hs), scaled_pair<1>(low, ls), scaled_pair<1>(high, hs)}};
    w[2 * i + 1] = {{scaled_pair<2>(low, ls), scaled_pair<2>(high, hs), scaled_pair<3>(low, ls), scaled_pair<3>(high, hs)}};
  }
}

__host__ __device__ constexpr int tiles_of(int rows) { return (rows + kAlign - 1) / kAlign * (kAlign / 8); }

struct PackArgs {
  Rows<const float> x;
  Units units;
  int topk, chunks;
  uint8_t* out;
  int32_t* taken;  // [2] tiles taken by up and by down beyond one a block
};

// A block takes a chunk of a unit, a warp eight columns.
__global__ void __launch_bounds__(kTiles * 32) pack(const __grid_constant__ PackArgs a) {
  constexpr int kStepWords = 64 + 4;  // of a tile in shared memory: padded against bank conflicts
  __shared__ __align__(16) uint32_t turned[kTiles][8 * kStepWords];
  wait_previous();
  allow_next();
  if (blockIdx.x == 0 && threadIdx.x < 2) a.taken[threadIdx.x] = 0;
  const int unit = static_cast<int>(blockIdx.x) / a.chunks, chunk = static_cast<int>(blockIdx.x) % a.chunks;
  if (unit >= *a.units.count) return;
  const int tile = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = a.units.rows[unit], tiles = tiles_of(rows);
  if (tile >= tiles) return;
  const int64_t first = a.units.first[unit];
  float4 v[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    v[c] = {0, 0, 0, 0};
    if (8 * tile + c < rows) v[c] = load_four(a.x.row(a.units.pairs[first + 8 * tile + c] / a.topk) + chunk * kChunkColumns + 4 * lane);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const uint2 pairs = folded_bf16(activation_block<Operand::kE4M3>(v[c]));
    uint32_t* to = &turned[tile][lane / 4 * kStepWords + 4 * c + lane % 4];
    to[0] = pairs.x;
    to[32] = pairs.y;
  }
  __syncwarp();
  uint8_t* const to = a.out + (first * a.chunks + static_cast<int64_t>(chunk) * tiles * 8 + 8 * tile) * kChunkBytes;
#pragma unroll
  for (int i = 0; i < kTileBytes / 512; ++i) {
    const int piece = 32 * i + lane;
    *reinterpret_cast<uint4*>(to + piece * 16) = *reinterpret_cast<const uint4*>(&turned[tile][piece / 16 * kStepWords + piece % 16 * 4]);
  }
}

struct WideArgs {
  ExpertTable table;
  Units units;
  const uint8_t* x;  // operand form
  Rows<const float> weights;
  int topk;
  float limit;
  uint8_t* act;  // up: operand form
  float* out;    // down: [pairs][hidden]
  int32_t* taken;
};

// What the consumers must know of a tile; the producer leaves it with every chunk.
struct TileInfo {
  int32_t rows, first, block;  // of the unit; block: which rows of the weights; rows 0: there is no tile any more
};

struct Shared {
  uint64_t full[kDepth], empty[kDepth];
  TileInfo info[kDepth];
  int32_t pairs[kColumns];
  float routing[kColumns];
  float peak[kHalf][kColumns];
  float2 scale[kColumns];  // and its inverse
  int next[2];             // tile of the copying warps, every other one
};

template <bool kUp>
struct Sizes {
  int chunks, blocks, strips;  // chunks of k; blocks of a unit; strips of the weight
  __device__ explicit Sizes(const ExpertTable& t)
      : chunks(static_cast<int>((kUp ? t.hidden_dim : t.ffn_dim) / kChunkColumns)),
        blocks(static_cast<int>(kUp ? t.ffn_dim / (kHalf * kStripRows) : (t.hidden_dim / kStripRows + kStrips - 1) / kStrips)),
        strips(static_cast<int>((kUp ? t.ffn_dim : t.hidden_dim) / kStripRows)) {}
};

// Four warps that copy: each brings four strips of the block and a quarter of the operand. Lanes go one after another, so there are few to a warp: 0 to 3
// the strips' codes, 4 to 7 their scales, 8 the operand.
template <bool kUp>
__device__ void produce(const WideArgs& a, Shared& s, uint32_t ring, int total) {
  constexpr int kWarpStrips = kStrips / kCopyWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 - kWarps, slot = warp * kWarpStrips + lane % kWarpStrips;
  const bool codes = lane < kWarpStrips, operand = lane == 2 * kWarpStrips, copies = lane <= 2 * kWarpStrips, leads = warp == 0 && lane == 0;
  const Sizes<kUp> size(a.table);
  const uint8_t* const* const from_table =
      kUp ? (slot < kHalf ? (codes ? a.table.w1 : a.table.w1_scale) : (codes ? a.table.w3 : a.table.w3_scale)) : (codes ? a.table.w2 : a.table.w2_scale);
  uint32_t n = 0;  // chunks so far
  int tile = static_cast<int>(blockIdx.x);
  for (int turn = 0; tile < total; ++turn) {
    int next = 0;
    if (leads) next = static_cast<int>(gridDim.x) + atomicAdd(a.taken, 1);
    const int unit = tile / size.blocks, block = tile % size.blocks;
    const TileInfo info = {a.units.rows[unit], a.units.first[unit], block};
    // A block beyond the last strip works on that one again; nobody keeps its sums.
    const int strip = kUp ? block * kHalf + slot % kHalf : min(block * kStrips + slot, size.strips - 1);
    const uint32_t operand_bytes = static_cast<uint32_t>(tiles_of(info.rows)) * kTileBytes, part = operand_bytes / kCopyWarps;
    const uint32_t bytes = operand ? part : codes ? kMxfp4ChunkBytes : kMxfp4ChunkScaleBytes, advance = operand ? operand_bytes : bytes;
    const uint32_t to = ring + (operand ? kOperandAt + warp * part : codes ? slot * kMxfp4ChunkBytes : kScalesAt + slot * kMxfp4ChunkScaleBytes);
    const uint8_t* from = operand ? a.x + static_cast<int64_t>(info.first) * size.chunks * kChunkBytes + warp * part
                                  : from_table[a.units.expert[unit]] + static_cast<int64_t>(strip) * size.chunks * bytes;
    for (int chunk = 0; chunk < size.chunks; ++chunk, ++n) {
      const uint32_t stage = n % kDepth, full = shared_address(&s.full[stage]);
      wait_barrier(shared_address(&s.empty[stage]), (n / kDepth & 1) ^ 1);
      if (lane == 0) {
        if (warp == 0) s.info[stage] = info;
        arrive_expecting(full, kWeightBytes / kCopyWarps + part);
      }
      __syncwarp();
      if (copies) bulk_load(to + stage * kStageBytes, from, bytes, full);
      from += advance;
    }
    if (leads) s.next[turn % 2] = next;
    asm volatile("bar.sync 2, %0;" ::"n"(kCopyWarps * 32) : "memory");
    tile = s.next[turn % 2];
  }
  wait_barrier(shared_address(&s.empty[n % kDepth]), (n / kDepth & 1) ^ 1);
  if (leads) s.info[n % kDepth] = {0, 0, 0};
  if (lane == 0) arrive(shared_address(&s.full[n % kDepth]));
}

__device__ void meet_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory"); }

// Where a lane of a consumer finds things, in the first stage.
struct Place {
  uint32_t full, empty, codes, scales, operand;
};
// Values that the compiler shall keep, not work out again.
__device__ uint32_t kept(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}
// This lane's part of its warp's strip in chunk n of the ring.
struct Words {
  uint4 first, second;
  uint2 scales;
};
__device__ Words fetch(const Place& p, uint32_t n) {
  const uint32_t at = n % kDepth * kStageBytes;
  wait_barrier(p.full + n % kDepth * 8, n / kDepth & 1);
  return {load_shared16(p.codes + at), load_shared16(p.codes + at + 512), load_shared8(p.scales + at)};
}
// Four products with the first kT column tiles of `sum`; one batch.
template <int kT>
__device__ void products(float (&sum)[kTiles][4], const OperandA (&w)[4], uint32_t operand) {
  const uint64_t b = operand_b(operand, kTileBytes);
  const uint32_t low = static_cast<uint32_t>(b);
  warpgroup_begin();
#pragma unroll
  for (int i = 0; i < 4; ++i) Warpgroup<true, kT>::product(reinterpret_cast<float(&)[kT][4]>(sum), w[i], b >> 32 << 32 | (low + i * (256 >> 4)), 1);
  commit_batch();
}

// A branch in every batch, for sums and operands then stay in the same registers; with a loop for each number of tiles ptxas finds too few of them.
// Columns beyond the unit's tiles meet what an older chunk left; nobody keeps their sums.
__device__ void products(int tiles, float (&sum)[kTiles][4], const OperandA (&w)[4], uint32_t operand) {
  if (tiles == 10) {
    products<10>(sum, w, operand);
  } else if (tiles > 10) {
    products<kTiles>(sum, w, operand);
  } else if (tiles == 8) {
    products<8>(sum, w, operand);
  } else if (tiles == 6) {
    products<6>(sum, w, operand);
  } else {
    products<4>(sum, w, operand);
  }
}

// This warp's strip against the unit's columns.
__device__ void multiply(const Place& p, uint32_t& n, int chunks, int tiles, float (&sum)[kTiles][4]) {
  const bool leads = threadIdx.x % 32 == 0;
  OperandA w[2][4];
  Words words = fetch(p, n);
  for (int chunk = 0; chunk < chunks; ++chunk, ++n) {
    const uint32_t operand = p.operand + n % kDepth * kStageBytes;
    decode<0>(words.first, words.scales, w[0]);
    products(tiles, sum, w[0], operand);
    wait_batches<1>();
    if (chunk != 0 && leads) arrive(p.empty + (n - 1) % kDepth * 8);
    decode<2>(words.second, words.scales, w[1]);
    products(tiles, sum, w[1], operand + 4 * 256);
    if (chunk + 1 < chunks) words = fetch(p, n + 1);
    wait_batches<1>();
  }
  wait_batches<0>();
  if (leads) arrive(p.empty + (n - 1) % kDepth * 8);
}

// Activations of 128 rows, a chunk of down's k, rounded and in operand form. The warps of w1's strips finish the first half of the columns, those of w3's
// the second.
__device__ void finish_up(const WideArgs& a, Shared& s, uint32_t out, uint8_t* out_at, const TileInfo& info, float routing, const float (&sum)[kTiles][4]) {
  constexpr int kOwn = kTiles / 2;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, strip = warp % kHalf, g = lane / 4, t = lane % 4;
  const bool is_up = warp >= kHalf;
  if (tid < kColumns) s.routing[tid] = routing;
  if (tid == 0) wait_stores_read();
  meet_consumers();
  float4* const exchange = reinterpret_cast<float4*>(out_at) + lane;  // [warp][tile][lane]
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    float v[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) v[c] = is_up ? sum[i][c] : sum[i + kOwn][c];
    exchange[(warp * kOwn + i) * 32] = {v[0], v[1], v[2], v[3]};
  }
  meet_consumers();
  float act[kOwn][4];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const float4 theirs4 = exchange[((is_up ? warp - kHalf : warp + kHalf) * kOwn + i) * 32];
    const float theirs[4] = {theirs4.x, theirs4.y, theirs4.z, theirs4.w};
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * (i + (is_up ? kOwn : 0)) + 2 * t + c;
      float most = 0;
#pragma unroll
      for (int r = c; r < 4; r += 2) {
        const float ours = is_up ? sum[i + kOwn][r] : sum[i][r];
        act[i][r] = __fmul_rn(swiglu_value(is_up ? theirs[r] : ours, is_up ? ours : theirs[r], a.limit), s.routing[column]);
        most = fmaxf(most, fabsf(act[i][r]));
      }
#pragma unroll
      for (int step = 4; step < 32; step *= 2) most = fmaxf(most, shuffle_xor(most, step));
      if (g == 0) s.peak[strip][column] = most;
    }
  }
  meet_consumers();
  if (tid < kColumns) {
    float most = s.peak[0][tid];
#pragma unroll
    for (int w = 1; w < kHalf; ++w) most = fmaxf(most, s.peak[w][tid]);
    const uint8_t code = e4m3_scale_of(most);
    const float scale = decode_e8m0(code);
    s.scale[tid] = {scale, code == 255 ? scale : __uint_as_float((254u - code) << 23)};
  }
  meet_consumers();
  uint8_t* const to = out_at + (is_up ? kOwn : 0) * kTileBytes + strip * 256 + g % 4 / 2 * 128 + g / 4 * 4 + g % 2 * 2;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float2 scale = s.scale[8 * (i + (is_up ? kOwn : 0)) + 2 * t + c];
      uint16_t codes;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(act[i][c + 2] * scale.y), "f"(act[i][c] * scale.y));
      float2 v;
      asm("{.reg .b32 p; .reg .f16 l, h; cvt.rn.f16x2.e4m3x2 p, %2; mov.b32 {l, h}, p; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
          : "=f"(v.x), "=f"(v.y)
          : "h"(codes));
      uint32_t pair;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(v.y * scale.x), "f"(v.x * scale.x));
      *reinterpret_cast<uint16_t*>(to + i * kTileBytes + (2 * t + c) * 16) = static_cast<uint16_t>(pair);
      *reinterpret_cast<uint16_t*>(to + i * kTileBytes + (2 * t + c) * 16 + 8) = static_cast<uint16_t>(pair >> 16);
    }
  }
  publish_copies();
  meet_consumers();
  if (tid == 0) {
    const int64_t chunks = a.table.ffn_dim / kChunkColumns;
    const uint32_t bytes = tiles_of(info.rows) * kTileBytes;
    bulk_store(a.act + info.first * chunks * kChunkBytes + static_cast<int64_t>(info.block) * bytes, out, bytes);
  }
}

__device__ void finish_down(const WideArgs& a, Shared& s, const TileInfo& info, int32_t pair, const float (&sum)[kTiles][4]) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  meet_consumers();  // nobody reads the last tile's pairs any more
  if (tid < kColumns) s.pairs[tid] = pair;
  meet_consumers();
  const int64_t n = a.table.hidden_dim, row = (static_cast<int64_t>(info.block) * kStrips + warp) * kStripRows + g;
  if (row >= n) return;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * i + 2 * t + c;
      if (column >= info.rows) continue;
      float* const at = a.out + s.pairs[column] * n + row;
      at[0] = sum[i][c];
      at[8] = sum[i][c + 2];
    }
  }
}

template <bool kUp>
__device__ void take_tile(const WideArgs& a, Shared& s, const Place& p, uint32_t out, uint8_t* out_at, uint32_t& n, int chunks, const TileInfo& info) {
  const int tid = static_cast<int>(threadIdx.x);
  int32_t pair = 0;
  float routing = 0;
  if (tid < info.rows) {
    pair = a.units.pairs[info.first + tid];
    if (kUp) routing = a.weights.row(pair / a.topk)[pair % a.topk];
  }
  float sum[kTiles][4] = {};
  multiply(p, n, chunks, tiles_of(info.rows), sum);
  if constexpr (kUp) {
    finish_up(a, s, out, out_at, info, routing, sum);
  } else {
    finish_down(a, s, info, pair, sum);
  }
}

template <bool kUp>
__global__ void __launch_bounds__(kThreads, 1) expert_wide(const __grid_constant__ WideArgs a) {
  extern __shared__ __align__(128) uint8_t raw[];
  __shared__ Shared s;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kDepth; ++i) {
      init_barrier(shared_address(&s.full[i]), kCopyWarps);
      init_barrier(shared_address(&s.empty[i]), kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_previous();
  allow_next();
  const uint32_t ring = shared_address(raw);
  const Sizes<kUp> size(a.table);
  const int total = *a.units.count * size.blocks;
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    produce<kUp>(a, s, ring, total);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Place p = {kept(shared_address(s.full)), kept(shared_address(s.empty)), kept(ring + warp * kMxfp4ChunkBytes + lane * 16),
                     kept(ring + kScalesAt + warp * kMxfp4ChunkScaleBytes + lane / 4 * 8), kept(ring + kOperandAt)};
    for (uint32_t n = 0;;) {
      wait_barrier(p.full + n % kDepth * 8, n / kDepth & 1);
      const TileInfo info = s.info[n % kDepth];
      if (info.rows == 0) break;
      take_tile<kUp>(a, s, p, ring + kDepth * kStageBytes, raw + kDepth * kStageBytes, n, size.chunks, info);
    }
    if (kUp && threadIdx.x == 0) wait_stores();
  }
}

}  // namespace

bool moe_wide_fits(const MoeExpertsArgs& a) {
  // Weights are read and decoded whatever the number of pairs; with few of them an expert, most experts are not chosen.
  return a.table.format == WeightFormat::kMxfp4 && a.rounding == ActivationRounding::kE4M3 && a.x.rows >= 256 &&
         a.x.rows * a.experts.cols >= 8 * a.table.num_experts;
}

Status moe_experts_wide(GpuContext& gpu, const MoeExpertsArgs& a) {
  const int64_t tokens = a.x.rows, topk = a.experts.cols, pairs = tokens * topk, experts = a.table.num_experts;
  const int64_t hidden_chunks = a.table.hidden_dim / kChunkColumns, ffn_chunks = a.table.ffn_dim / kChunkColumns;
  const int64_t most = max_units(pairs, experts, kColumns), places = most_places(pairs, experts, kAlign);
  Units units{};
  uint8_t *x = nullptr, *act = nullptr;
  float* out = nullptr;
  const auto cut = [&](ScratchPlan plan) {
    units = {plan.take<int32_t>(3), plan.take<int32_t>(most), plan.take<int32_t>(most), plan.take<int32_t>(most), plan.take<int32_t>(places), kAlign};
    act = plan.take<uint8_t>(places * ffn_chunks * kChunkBytes);
    // x is read for the last time before `out` is written.
    x = plan.take<uint8_t>(std::max<int64_t>(places * hidden_chunks * kChunkBytes, pairs * a.table.hidden_dim * 4));
    out = reinterpret_cast<float*>(x);
    return plan.used_bytes();
  };
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(cut(ScratchPlan())));
  cut(ScratchPlan(scratch));
  DSV4_RETURN_IF_ERROR(sort_pairs(gpu, rows_of(a.experts), tokens, topk, experts, kColumns, units));
  const PackArgs pack_x = {rows_of(a.x), units, static_cast<int>(topk), static_cast<int>(hidden_chunks), x, units.count + 1};
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (pack)", pack, {.blocks_x = most * hidden_chunks, .threads = kTiles * 32}, pack_x));
  const LaunchShape shape = {.blocks_x = gpu.properties.multiprocessors, .threads = kThreads, .shared_bytes = kSharedBytes};
  WideArgs args = {a.table, units, x, rows_of(a.weights), static_cast<int>(topk), a.limit, act, out, units.count + 1};
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (up)", expert_wide<true>, shape, args));
  args.x = act;
  ++args.taken;
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (down)", expert_wide<false>, shape, args));
  return combine_pairs(gpu, out, a);
}

}  // namespace dsv4::gpu
