// moe_experts for many rows (prefill), MXFP4 weights and E4M3 activations, on BF16 warpgroup products.
//
// Every operand is exact in bfloat16 with its scale in it: E2M1 has one bit behind the point, E4M3 three, scales are powers of two. So the products run
// through all of k without a look at scales, in the tensor cores' float32. (Below 256 rows the other kernels serve, whose order of additions differs.)
// A block takes a unit of up to kColumns pairs of one expert and 128 rows of weights: two warpgroups, the first w1 and the second w3 of the same 64
// rows (up), or 128 rows of w2 (down). A warp decodes its strip into registers, operand A; the unit's rows, gathered, are operand B in shared memory.
// Two blocks share a multiprocessor: one decodes, starts or ends while the other multiplies.
//   sort     (moe_sort.h)
//   pack     rows into operand form: [row][chunk][step][core matrix][16 bytes], bfloat16
//   up       act[pair]; pack again; down: out[pair]; combine: y[t] += out of the token's pairs, in order
// Bound by the tensor cores where units are full.
#include <algorithm>

#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/moe.h"
#include "backends/gpu/sm90/moe_sort.h"
#include "backends/gpu/sm90/warpgroup.h"

namespace dsv4::gpu {
namespace {

constexpr int kTiles = 12;
constexpr int kColumns = kTiles * 8;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kChunkBytes = 256;  // one row and chunk in operand form
constexpr int kWeightBytes = kMxfp4ChunkBytes + kMxfp4ChunkScaleBytes;
constexpr int kOperandBytes = kColumns * kChunkBytes;
constexpr int kStageBytes = kWarps * kWeightBytes + kOperandBytes;
constexpr int kDepth = 3;
constexpr int kCopies = kColumns * 16 / kThreads;  // pieces of 16 bytes of operand B that a thread copies per chunk
static_assert(kColumns * 16 % kThreads == 0 && 2 * (kDepth * kStageBytes + 2048) <= 227 * 1024);

// Pair kPair of an mxfp4 word as bfloat16 times 2^-126: subnormal where the code is.
template <int kPair>
__device__ uint32_t subnormal_pair(uint32_t word) {
  const uint32_t pair = strip_mxfp4_pair(word, kPair);
  return (pair >> 3 & 0x01c001c0u) | (pair & 0x80008000u);
}
__device__ uint32_t times_bf16(uint32_t pair, uint32_t factor) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(factor));
  return out;
}
// Two factors that make 2^126 times the scale of group q: 2^63 and this one, twice over; scales up to 2^64.
constexpr uint32_t kHalf = (63u + 127u) * 0x00800080u;
__device__ uint32_t rest_of_scale(uint32_t scales, int q) { return min((scales >> (8 * q) & 255u) + 63u, 255u) * 0x00800080u; }
template <int kPair>
__device__ uint32_t scaled_pair(uint32_t word, uint32_t rest) {
  return times_bf16(times_bf16(subnormal_pair<kPair>(word), kHalf), rest);
}

struct PackArgs {
  Rows<const float> x;
  int64_t rows, chunks;
  uint8_t* out;
};

// One warp per row and chunk.
__global__ void __launch_bounds__(kThreads) pack(const __grid_constant__ PackArgs a) {
  wait_previous();
  allow_next();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= a.rows * a.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ActivationBlock block = activation_block<Operand::kE4M3>(load_four(a.x.row(item / a.chunks) + item % a.chunks * kChunkColumns + 4 * lane));
  uint32_t* to = reinterpret_cast<uint32_t*>(a.out + item * kChunkBytes) + lane / 4 * 8 + lane % 4;
  const uint32_t halves[2] = {block.term[0].x, block.term[0].y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float2 v;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(v.x), "=f"(v.y) : "r"(halves[i]));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to[4 * i]) : "f"(v.y * block.scale), "f"(v.x * block.scale));
  }
}

struct WideArgs {
  ExpertTable table;
  Units units;
  const uint8_t* x;
  int pair_divisor;  // row of x of a pair: pair / pair_divisor (topk for x, 1 for activations)
  Rows<const float> weights;
  int topk;
  float limit;
  float* out;  // up: act [pairs][ffn]; down: out [pairs][hidden]
};

template <bool kUp>
__global__ void __launch_bounds__(kThreads, 2) expert_wide(const __grid_constant__ WideArgs a) {
  constexpr int kBlockStrips = kUp ? 4 : 8;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ int32_t pairs[kColumns];
  __shared__ float routing[kColumns];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  const int64_t n = kUp ? a.table.ffn_dim : a.table.hidden_dim, k = kUp ? a.table.hidden_dim : a.table.ffn_dim;
  const int chunks = static_cast<int>(k / kChunkColumns), strips = static_cast<int>(n / kStripRows);
  const int blocks_per_unit = (strips + kBlockStrips - 1) / kBlockStrips;
  const int unit = static_cast<int>(blockIdx.x) / blocks_per_unit, block = static_cast<int>(blockIdx.x) % blocks_per_unit;

  wait_previous();
  allow_next();
  if (unit >= *a.units.count) return;
  const int32_t e = a.units.expert[unit];
  const int rows = a.units.rows[unit];
  // Columns beyond the unit's rows repeat its first one; nobody reads their sums.
  for (int c = tid; c < kColumns; c += kThreads) {
    const int32_t pair = a.units.pairs[a.units.first[unit] + (c < rows ? c : 0)];
    pairs[c] = pair;
    if (kUp) routing[c] = a.weights.row(pair / a.topk)[pair % a.topk];
  }
  const int strip = block * kBlockStrips + warp % kBlockStrips;
  const bool works = strip < strips, is_up = kUp && warp >= kBlockStrips;
  const int64_t first_piece = static_cast<int64_t>(works ? strip : 0) * chunks;
  const uint8_t* data = (kUp ? (is_up ? a.table.w3[e] : a.table.w1[e]) : a.table.w2[e]) + first_piece * kMxfp4ChunkBytes;
  const uint8_t* scale = (kUp ? (is_up ? a.table.w3_scale[e] : a.table.w1_scale[e]) : a.table.w2_scale[e]) + first_piece * kMxfp4ChunkScaleBytes;
  const uint32_t ring = shared_address(shared);
  __syncthreads();

  // Of every chunk this thread copies 16-byte part tid / 8 % 16 of columns tid % 8 + 8 (tid / 128) + 16 i: eight neighbours in time fill a core matrix,
  // so shared memory takes a warp's copies without conflicts.
  const int part = tid / 8 % 16;
  uint32_t from[kCopies];  // bytes into x, which is smaller than 4 GiB
#pragma unroll
  for (int i = 0; i < kCopies; ++i)
    from[i] = static_cast<uint32_t>(pairs[tid % 8 + tid / 128 * 8 + 16 * i] / a.pair_divisor) * static_cast<uint32_t>(chunks * kChunkBytes) + part * 16;
  const uint32_t to = static_cast<uint32_t>(kWarps * kWeightBytes + (tid / 128 * 8 + part / 2) * 256 + part % 2 * 128 + tid % 8 * 16);
  const auto copy_stage = [&](int chunk) {
    if (chunk < chunks) {
      const uint32_t stage = ring + chunk % kDepth * kStageBytes;
      copy_piece<WeightFormat::kMxfp4>(stage + warp * kWeightBytes, data + static_cast<int64_t>(chunk) * kMxfp4ChunkBytes,
                                       scale + static_cast<int64_t>(chunk) * kMxfp4ChunkScaleBytes, lane);
#pragma unroll
      for (int i = 0; i < kCopies; ++i) copy16_async(stage + to + i * 2 * 8 * 256, a.x + (from[i] + static_cast<uint32_t>(chunk) * kChunkBytes));
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kDepth - 1; ++i) copy_stage(i);

  float sum[kTiles][4];
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_copies<kDepth - 2>();
    publish_copies();
    __syncthreads();
    copy_stage(chunk + kDepth - 1);
    const uint32_t stage = ring + chunk % kDepth * kStageBytes, piece = stage + warp * kWeightBytes;
    const uint4 codes[2] = {load_shared16(piece + lane * 16), load_shared16(piece + 512 + lane * 16)};
    const uint2 scales = load_shared8(piece + kMxfp4ChunkBytes + g * 8);
    OperandA w[8];
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const uint4 v = codes[group / 2];
      const uint32_t low = group % 2 == 0 ? v.x : v.z, high = group % 2 == 0 ? v.y : v.w;
      const uint32_t low_scale = rest_of_scale(scales.x, group), high_scale = rest_of_scale(scales.y, group);
      w[2 * group] = {{scaled_pair<0>(low, low_scale), scaled_pair<0>(high, high_scale), scaled_pair<1>(low, low_scale), scaled_pair<1>(high, high_scale)}};
      w[2 * group + 1] = {{scaled_pair<2>(low, low_scale), scaled_pair<2>(high, high_scale), scaled_pair<3>(low, low_scale), scaled_pair<3>(high, high_scale)}};
    }
    const uint64_t b = operand_b(stage + kWarps * kWeightBytes, 8 * 256);
    warpgroup_begin();
#pragma unroll
    for (int s = 0; s < 8; ++s) Warpgroup<true, kTiles>::product(sum, w[s], b + s * (256 >> 4), s == 0 ? chunk : 1);
    warpgroup_end();
  }

  float* const out = a.out + strip * kStripRows + g;
  if constexpr (!kUp) {
    if (!works) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = i * 8 + 2 * t + c % 2;
        if (column < rows) out[pairs[column] * n + c / 2 * 8] = sum[i][c];
      }
    }
  } else {
    // Each warp finishes half of its strip's columns: it hands the other half to the warp with the strip's other matrix.
    constexpr int kHalf = kTiles / 2;
    wait_copies<0>();
    __syncthreads();
    float* const exchange = reinterpret_cast<float*>(shared) + lane;  // [warp][values][lanes]
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) exchange[(warp * kHalf * 4 + i * 4 + c) * 32] = is_up ? sum[i][c] : sum[i + kHalf][c];
    }
    __syncthreads();
    if (!works) return;
    const float* const other = exchange + (warp + (is_up ? -kBlockStrips : kBlockStrips)) * kHalf * 4 * 32;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = (i + (is_up ? kHalf : 0)) * 8 + 2 * t + c % 2;
        if (column >= rows) continue;
        const float theirs = other[(i * 4 + c) * 32];
        const float act = swiglu_value(is_up ? theirs : sum[i][c], is_up ? sum[i + kHalf][c] : theirs, a.limit);
        out[pairs[column] * n + c / 2 * 8] = __fmul_rn(act, routing[column]);
      }
    }
  }
}

}  // namespace

bool moe_wide_fits(const MoeExpertsArgs& a) {
  // From half-full units on; fewer pairs an expert leave the tensor cores' columns empty.
  return a.table.format == WeightFormat::kMxfp4 && a.rounding == ActivationRounding::kE4M3 && a.x.rows >= 256 &&
         a.x.rows * a.experts.cols >= 24 * a.table.num_experts &&
         2 * a.x.rows * std::max(a.table.hidden_dim, a.experts.cols * a.table.ffn_dim) < int64_t{1} << 32;
}

Status moe_experts_wide(GpuContext& gpu, const MoeExpertsArgs& a) {
  const int64_t tokens = a.x.rows, topk = a.experts.cols, pairs = tokens * topk, experts = a.table.num_experts;
  const int64_t hidden_chunks = a.table.hidden_dim / kChunkColumns, ffn_chunks = a.table.ffn_dim / kChunkColumns;
  const int64_t most = max_units(pairs, experts, kColumns);
  Units units{};
  uint8_t *x = nullptr, *act_rows = nullptr;
  float *act = nullptr, *out = nullptr;
  const auto cut = [&](ScratchPlan plan) {
    units = {plan.take<int32_t>(1), plan.take<int32_t>(most), plan.take<int32_t>(most), plan.take<int32_t>(most), plan.take<int32_t>(pairs)};
    x = plan.take<uint8_t>(tokens * hidden_chunks * kChunkBytes);
    act_rows = plan.take<uint8_t>(pairs * ffn_chunks * kChunkBytes);
    act = plan.take<float>(pairs * a.table.ffn_dim);
    out = plan.take<float>(pairs * a.table.hidden_dim);
    return plan.used_bytes();
  };
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(cut(ScratchPlan())));
  cut(ScratchPlan(scratch));
  DSV4_RETURN_IF_ERROR(sort_pairs(gpu, rows_of(a.experts), tokens, topk, experts, kColumns, units));
  const PackArgs pack_x = {rows_of(a.x), tokens, hidden_chunks, x};
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (pack)", pack, {.blocks_x = ceil_div(tokens * hidden_chunks, kWarps), .threads = kThreads}, pack_x));
  const int shared = kDepth * kStageBytes;
  WideArgs args = {a.table, units, x, static_cast<int>(topk), rows_of(a.weights), static_cast<int>(topk), a.limit, act};
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (up)", expert_wide<true>,
                              {.blocks_x = most * ceil_div(a.table.ffn_dim / kStripRows, 4), .threads = kThreads, .shared_bytes = shared}, args));
  const PackArgs pack_act = {{act, a.table.ffn_dim}, pairs, ffn_chunks, act_rows};
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (pack)", pack, {.blocks_x = ceil_div(pairs * ffn_chunks, kWarps), .threads = kThreads}, pack_act));
  args.x = act_rows;
  args.pair_divisor = 1;
  args.out = out;
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (down)", expert_wide<false>,
                              {.blocks_x = most * ceil_div(a.table.hidden_dim / kStripRows, 8), .threads = kThreads, .shared_bytes = shared}, args));
  return combine_pairs(gpu, out, a);
}

}  // namespace dsv4::gpu
