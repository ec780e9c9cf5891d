// moe_experts for 2 to 64 rows, MXFP4 weights and E4M3 activations: weights go from memory to the registers of the lane that multiplies them.
//
// A block is kSets sets of eight warps. A set takes an item, two strips that meet the same unit (moe_sort.h): w1 and w3 of the same rows (up), or two
// neighbouring strips of w2 (down). Warp g of the set sums k group g of both (sm90/fragment.h); the set then adds the groups. Every warp fetches a
// piece as soon as it has multiplied the one before, across items, so loads never stop. Items of a block are contiguous, so a block meets few units; it
// turns a unit's rows (columns of the product) into operand form in shared memory, once.
//   expert_up    act[pair] = swiglu(w1 x, w3 x) * weight of the pair
//   expert_down  out[pair] = w2 act
//   combine      y[t] += out of the token's pairs, in order
// The additions are those of every strip kernel, so bits do not depend on which rows share a unit, or on the number of rows.
// Bound by reading the chosen experts' weights once (73 % of the read ceiling at 16 and 64 rows), and by issue: about 180 instructions per piece of
// 1,088 bytes, where memory gives one per 217 cycles of a scheduler.
#include <algorithm>

#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/moe.h"
#include "backends/gpu/sm90/moe_sort.h"

namespace dsv4::gpu {
namespace {

constexpr int kSets = 3;
constexpr int kSetThreads = kKGroups * 32;
constexpr int kThreads = kSets * kSetThreads;
constexpr int kColumns = 8;
constexpr int kChunkBytes = 256;   // a row's operand of one chunk
constexpr int kRowPadBytes = 32;   // shifts the rows' banks
constexpr int kZeroBytes = 384;    // what columns beyond the last read
constexpr int kColumnFloats = 20;  // a column's 16 sums in shared memory; shifts banks
constexpr int kMostShared = 220 * 1024;

// This lane's share of one piece: two times 16 bytes of codes and the scales of its two rows.
struct Piece {
  uint4 codes[2];
  uint2 scales;
};

__device__ uint4 fetch16(const uint8_t* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
__device__ uint2 fetch8(const uint8_t* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
__device__ void fetch(Piece& piece, const uint8_t* codes, const uint8_t* scales) {
  piece.codes[0] = fetch16(codes);
  piece.codes[1] = fetch16(codes + 512);
  piece.scales = fetch8(scales);
}

// sum += piece * operand, in the accumulator's layout.
__device__ void multiply(float (&sum)[4], const Piece& piece, uint32_t operand, float2 x_scale) {
  float part[4] = {};
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const uint4 w = piece.codes[q / 2];
    OperandA even, odd;
    mxfp4_operands(q % 2 == 0 ? w.x : w.z, q % 2 == 0 ? w.y : w.w, even, odd);
    float acc[4] = {};
    mma_f16(acc, even, load_shared8(operand + 2 * q * 32));
    mma_f16(acc, odd, load_shared8(operand + (2 * q + 1) * 32));
    add_group(part, acc, mxfp4_scale(piece.scales.x, q), mxfp4_scale(piece.scales.y, q));
  }
  const float f0 = __fmul_rn(x_scale.x, kMxfp4Unit), f1 = __fmul_rn(x_scale.y, kMxfp4Unit);
  sum[0] = __fmaf_rn(part[0], f0, sum[0]);
  sum[1] = __fmaf_rn(part[1], f1, sum[1]);
  sum[2] = __fmaf_rn(part[2], f0, sum[2]);
  sum[3] = __fmaf_rn(part[3], f1, sum[3]);
}

__device__ void set_barrier(int set) { asm volatile("bar.sync %0, %1;" ::"r"(1 + set), "n"(kSetThreads) : "memory"); }

// A group's sums of one strip, for the set: [column][kColumnFloats].
__device__ void put_sums(float* to, const float (&sum)[4], int g, int t) {
  to[2 * t * kColumnFloats + g] = sum[0];
  to[(2 * t + 1) * kColumnFloats + g] = sum[1];
  to[2 * t * kColumnFloats + g + 8] = sum[2];
  to[(2 * t + 1) * kColumnFloats + g + 8] = sum[3];
}
// Adds the groups in order. `groups` lie 2 strips apart.
__device__ float add_groups(const float* at) {
  float total = at[0];
#pragma unroll
  for (int q = 1; q < kKGroups; ++q) total = __fadd_rn(total, at[q * 2 * kColumns * kColumnFloats]);
  return total;
}

// Rows of float32 into operand form: chunk c of row r at terms + r * row_stride + c * kChunkBytes, its scale at scales[c * kColumns + r].
template <class RowAt>
__device__ void make_operands(int rows, int chunks, uint8_t* terms, int row_stride, float* scales, RowAt row_at) {
  constexpr int kBatch = 2;  // loads under way together
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int i0 = warp; i0 < rows * chunks; i0 += kBatch * (kThreads / 32)) {
    float4 v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = i0 + b * (kThreads / 32);
      if (i < rows * chunks) v[b] = load_four(row_at(i / chunks) + i % chunks * kChunkColumns + 4 * lane);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = i0 + b * (kThreads / 32);
      if (i >= rows * chunks) break;
      const ActivationBlock block = activation_block<Operand::kE4M3>(v[b]);
      *reinterpret_cast<uint2*>(terms + i / chunks * row_stride + i % chunks * kChunkBytes + 8 * lane) = block.term[0];
      if (lane == 0) scales[i % chunks * kColumns + i / chunks] = block.scale;
    }
  }
}

// A unit that the block meets.
struct Met {
  int32_t rows;
  int32_t pairs[kColumns];
  const uint8_t *codes[2], *scales[2];
};

// Shared memory of both kernels: x [rows], zeros, scales of x, sums [sets][2 buffers][groups][2 strips][columns][kColumnFloats], units met.
struct Layout {
  int row_stride, zeros, scales, sums, met, bytes;
};
Layout layout_of(int chunks, int most_units) {
  Layout l{};
  l.row_stride = chunks * kChunkBytes + kRowPadBytes;
  l.zeros = (kColumns * l.row_stride + 127) / 128 * 128;
  l.scales = l.zeros + kZeroBytes;
  l.sums = (l.scales + 4 * chunks * kColumns + 15) / 16 * 16;
  l.met = l.sums + 4 * kSets * 2 * kKGroups * 2 * kColumns * kColumnFloats;
  l.bytes = l.met + most_units * static_cast<int>(sizeof(Met));
  return l;
}

struct StreamArgs {
  ExpertTable table;
  Units units;
  int topk;
  Rows<const float> x;
  int pair_divisor;  // row of x of a pair: pair / pair_divisor (topk for x, 1 for activations)
  Rows<const float> weights;
  float limit;
  float* out;
  // Sizes, here so that kernels need no registers for them.
  int n;
  int chunks, strips, items;  // items of a unit
  Layout at;
};

// Where a set is in its items.
struct Walk {
  int unit;  // among the units met
  int item;  // of the unit
  int left;  // items of the block from this one on; <= 0 beyond the last
};

template <bool kUp>
__device__ void meet(const StreamArgs& a, int unit, Met& met) {
  const int32_t e = a.units.expert[unit];
  met.rows = a.units.rows[unit];
  for (int r = 0; r < met.rows; ++r) met.pairs[r] = a.units.pairs[a.units.first[unit] + r];
  met.codes[0] = kUp ? a.table.w1[e] : a.table.w2[e];
  met.codes[1] = kUp ? a.table.w3[e] : met.codes[0];
  met.scales[0] = kUp ? a.table.w1_scale[e] : a.table.w2_scale[e];
  met.scales[1] = kUp ? a.table.w3_scale[e] : met.scales[0];
}

template <bool kUp>
__global__ void __launch_bounds__(kThreads, 1) expert_stream(const __grid_constant__ StreamArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int chunks = a.chunks, strips = a.strips, items = a.items;
  const Layout& at = a.at;
  float* const x_scales = reinterpret_cast<float*>(shared + at.scales);
  Met* const met = reinterpret_cast<Met*>(shared + at.met);
  const int tid = static_cast<int>(threadIdx.x), set = tid / kSetThreads, in_set = tid % kSetThreads, warp = in_set / 32, lane = tid % 32, g = lane / 4,
            t = lane % 4;
  const int first_chunk = static_cast<int>(group_begin(warp, chunks)), pieces = static_cast<int>(group_begin(warp + 1, chunks)) - first_chunk;
  for (int i = tid; i < kZeroBytes / 4; i += kThreads) reinterpret_cast<uint32_t*>(shared + at.zeros)[i] = 0;

  // The units are older than the kernel before expert_down, which waited for them.
  if (kUp) {
    wait_previous();
    allow_next();
  }
  const int total = *a.units.count * items;
  const int begin = static_cast<int>(static_cast<int64_t>(total) * blockIdx.x / gridDim.x),
            end = static_cast<int>(static_cast<int64_t>(total) * (blockIdx.x + 1) / gridDim.x);
  const int first_unit = begin / items, last_unit = (end + items - 1) / items;
  if (tid < last_unit - first_unit && begin < end) meet<kUp>(a, first_unit + tid, met[tid]);
  __syncthreads();
  if (begin >= end) {
    if (!kUp) {
      wait_previous();
      allow_next();
    }
    return;
  }

  const auto after = [&](Walk w, int steps) {
    w.item += steps * kSets;
    w.left -= steps * kSets;
    while (w.item >= items) {
      w.item -= items;
      ++w.unit;
    }
    return w;
  };
  Walk here{0, begin + set - first_unit * items, end - begin - set};
  here = after(here, 0);
  // What this lane fetches next.
  const uint8_t *codes[2] = {}, *scales[2] = {};
  const auto locate = [&](const Walk& w) {  // false: nothing
    if (w.left <= 0 || pieces == 0) return false;
    const Met& m = met[w.unit];
    const int strip = kUp ? w.item : 2 * w.item, other = kUp || strip + 1 == strips ? strip : strip + 1;
    const int64_t first[2] = {static_cast<int64_t>(strip) * chunks + first_chunk, static_cast<int64_t>(other) * chunks + first_chunk};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      codes[i] = m.codes[i] + first[i] * kMxfp4ChunkBytes + lane * 16;
      scales[i] = m.scales[i] + first[i] * kMxfp4ChunkScaleBytes + g * 8;
    }
    return true;
  };
  Piece piece[2];
  if (locate(here)) {
    fetch(piece[0], codes[0], scales[0]);
    fetch(piece[1], codes[1], scales[1]);
  }
  if (!kUp) {
    wait_previous();
    allow_next();
  }

  int buffer = 0;
  for (int unit = 0; unit < last_unit - first_unit; ++unit) {
    const Met& m = met[unit];
    if (unit != 0) __syncthreads();
    make_operands(m.rows, chunks, shared, at.row_stride, x_scales, [&](int r) { return a.x.row(m.pairs[r] / a.pair_divisor); });
    __syncthreads();
    const int rows = m.rows;
    const uint32_t operand0 = shared_address(shared) + (g < rows ? g * at.row_stride + first_chunk * kChunkBytes : at.zeros + g % 4 * 32) + 8 * t;
    const int operand_stride = g < rows ? kChunkBytes : 0;
    while (here.left > 0 && here.unit == unit) {
      float sum[2][4] = {};
      uint32_t operand = operand0;
#pragma unroll 1
      for (int p = 0; p < pieces; ++p) {
        bool more = true;
        if (p + 1 < pieces) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            codes[i] += kMxfp4ChunkBytes;
            scales[i] += kMxfp4ChunkScaleBytes;
          }
        } else {
          more = locate(after(here, 1));
        }
        const float2 x_scale = *reinterpret_cast<const float2*>(x_scales + (first_chunk + p) * kColumns + 2 * t);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply(sum[i], piece[i], operand, x_scale);
          if (more) fetch(piece[i], codes[i], scales[i]);
        }
        operand += operand_stride;
      }
      float* const sums = reinterpret_cast<float*>(shared + at.sums) + (set * 2 + buffer) * kKGroups * 2 * kColumns * kColumnFloats;
#pragma unroll
      for (int i = 0; i < 2; ++i) put_sums(sums + (warp * 2 + i) * kColumns * kColumnFloats, sum[i], g, t);
      set_barrier(set);
      const int row = in_set % kStripRows, column = in_set / kStripRows % kColumns, which = in_set / (kStripRows * kColumns);
      if (column < rows && which < (kUp ? 1 : 2)) {
        const float* from = sums + column * kColumnFloats + row;
        const int32_t pair = m.pairs[column];
        if constexpr (kUp) {
          const float act = swiglu_value(add_groups(from), add_groups(from + kColumns * kColumnFloats), a.limit);
          a.out[static_cast<int64_t>(pair) * a.n + here.item * kStripRows + row] = __fmul_rn(act, a.weights.row(pair / a.topk)[pair % a.topk]);
        } else if (here.item * 2 + which < strips) {
          a.out[static_cast<int64_t>(pair) * a.n + (here.item * 2 + which) * kStripRows + row] = add_groups(from + which * kColumns * kColumnFloats);
        }
      }
      here = after(here, 1);
      buffer ^= 1;
    }
  }
}

// y[t] += out of the token's choices, in order; a thread takes four neighbours.
constexpr int kCombineThreads = 256;
__global__ void __launch_bounds__(kCombineThreads) combine(const float* out, Rows<const int32_t> experts, int topk, int64_t dim, Rows<float> y) {
  constexpr int kBatch = 8;  // loads under way together
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.y, d = 4 * (static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x);
  if (d >= dim) return;
  float* const to = y.row(t) + d;
  float4 total = load_four(to);
  for (int k0 = 0; k0 < topk; k0 += kBatch) {
    float4 part[kBatch];
    bool there[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      there[i] = k0 + i < topk && experts.row(t)[k0 + i] >= 0;
      if (there[i]) part[i] = *reinterpret_cast<const float4*>(out + (t * topk + k0 + i) * dim + d);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!there[i]) continue;
      total = {__fadd_rn(total.x, part[i].x), __fadd_rn(total.y, part[i].y), __fadd_rn(total.z, part[i].z), __fadd_rn(total.w, part[i].w)};
    }
  }
  if (aligned16(to)) {
    *reinterpret_cast<float4*>(to) = total;
  } else {
    to[0] = total.x, to[1] = total.y, to[2] = total.z, to[3] = total.w;
  }
}

}  // namespace

Status combine_pairs(GpuContext& gpu, const float* out, const MoeExpertsArgs& a) {
  return launch(gpu, "moe_experts (combine)", combine,
                {.blocks_x = ceil_div(a.table.hidden_dim, 4 * kCombineThreads), .blocks_y = a.x.rows, .threads = kCombineThreads}, out, rows_of(a.experts),
                static_cast<int>(a.experts.cols), a.table.hidden_dim, rows_of(a.y));
}

bool moe_stream_fits(const MoeExpertsArgs& a) {
  if (a.table.format != WeightFormat::kMxfp4 || a.rounding != ActivationRounding::kE4M3 || a.x.rows < 2 || a.x.rows > 64) return false;
  const int chunks = static_cast<int>(std::max(a.table.hidden_dim, a.table.ffn_dim) / kChunkColumns);
  return layout_of(chunks, 64).bytes <= kMostShared;
}

Status moe_experts_stream(GpuContext& gpu, const MoeExpertsArgs& a) {
  const int64_t tokens = a.x.rows, topk = a.experts.cols, pairs = tokens * topk;
  const int64_t blocks = gpu.properties.multiprocessors;
  const int hidden_chunks = static_cast<int>(a.table.hidden_dim / kChunkColumns), ffn_chunks = static_cast<int>(a.table.ffn_dim / kChunkColumns);
  const int64_t most = max_units(pairs, a.table.num_experts, kColumns);
  const int met = static_cast<int>(ceil_div(most, blocks)) + 1;
  Units units{};
  float *act = nullptr, *out = nullptr;
  const auto cut = [&](ScratchPlan plan) {
    units = {plan.take<int32_t>(1), plan.take<int32_t>(most), plan.take<int32_t>(most), plan.take<int32_t>(most), plan.take<int32_t>(pairs)};
    act = plan.take<float>(pairs * a.table.ffn_dim);
    out = plan.take<float>(pairs * a.table.hidden_dim);
    return plan.used_bytes();
  };
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(cut(ScratchPlan())));
  cut(ScratchPlan(scratch));
  StreamArgs args = {a.table, units, static_cast<int>(topk), rows_of(a.x), static_cast<int>(topk), rows_of(a.weights), a.limit, act, 0, 0, 0, 0, {}};
  const auto sizes = [&](int64_t n, int chunks, bool up) {
    args.n = static_cast<int>(n);
    args.chunks = chunks;
    args.strips = static_cast<int>(n / kStripRows);
    args.items = up ? args.strips : (args.strips + 1) / 2;
    args.at = layout_of(chunks, met);
    return LaunchShape{.blocks_x = blocks, .threads = kThreads, .shared_bytes = args.at.bytes};
  };
  DSV4_RETURN_IF_ERROR(sort_pairs(gpu, rows_of(a.experts), tokens, topk, a.table.num_experts, kColumns, units));
  const LaunchShape up = sizes(a.table.ffn_dim, hidden_chunks, true);
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (up)", expert_stream<true>, up, args));
  args.x = {act, a.table.ffn_dim};
  args.pair_divisor = 1;
  args.out = out;
  const LaunchShape down = sizes(a.table.hidden_dim, ffn_chunks, false);
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (down)", expert_stream<false>, down, args));
  return combine_pairs(gpu, out, a);
}

}  // namespace dsv4::gpu
