// The shared expert (FP8) and the routed ones (MXFP4) for one row of E4M3 activations, in two launches of one block a multiprocessor.
//
// A block is three sets of eight warps; a set takes items, and its warp g sums k group g of an item (sm90/fragment.h). Then the set adds the groups.
//   all_up_row    an item is one strip of w1 and the same strip of w3, of the shared expert or of a chosen one: act = swiglu * routing weight. Items of
//                 the shared expert come first: their weights flow while the routing is still under way.
//   all_down_row  two strips of the output: the sets share the experts, and the block adds the experts' sums in order, the shared one first. Weights
//                 start before all_up_row ends, for the expert ids are older than both.
// Weights go through a ring of slots per warp in shared memory; a slot is a piece of each strip: a chunk of MXFP4 and its scales, or half a chunk of FP8.
// The additions are those of moe_row.cu, row_product.cu and portable/swiglu.cu, to the bit. One file for both kernels: they share all but their loops.
// 105 MB in 31 us behind the routing, 73 % of the read ceiling. Above reading: 2 us until the choices' weights flow, 2 of uneven ends of all_up_row, 3 until
// all_down_row has its activations, which come behind the weights under way; and issue, as an MXFP4 chunk of a strip takes about 130 instructions where
// memory gives one per 217 cycles of a scheduler.
#include <algorithm>

#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/activation.h"
#include "backends/gpu/sm90/moe.h"

namespace dsv4::gpu {
namespace {

constexpr int kWarps = kKGroups;
constexpr int kSetThreads = kWarps * 32;
constexpr int kSets = 3;
constexpr int kThreads = kSets * kSetThreads;
constexpr int kUpDepth = 4, kDownDepth = 3;  // slots of a warp
constexpr int kPieceCodes = kMxfp4ChunkBytes, kPieceScales = kMxfp4ChunkScaleBytes;
constexpr int kTermBytes = 256;  // a chunk of activations in operand form
constexpr int kZeroBytes = 320;  // what the operand columns without a term read, from kZeroShift: other banks than the terms
constexpr int kZeroShift = 64;
constexpr int kSumFloats = kWarps * kStripRows;  // a strip's sums of all groups
constexpr int kMostTopk = 8, kMostExperts = 256, kMostItems = 16;
static_assert(2 * kPieceCodes == kFp8ChunkBytes && 2 * kPieceScales / 16 <= 32);

struct AllArgs {
  ExpertTable table;
  const uint8_t *w1, *w1_scale, *w3, *w3_scale, *w2, *w2_scale;  // the shared expert's
  const float* x;
  const int32_t* experts;
  const float* weights;
  int topk;
  float limit;
  float* act;  // [topk + 1][ffn], the shared expert's last
  float* y;
  MemoryRange soon;
  // Sizes, here so that kernels need no registers for them.
  int hidden_chunks, hidden_strips, ffn_chunks, ffn_strips;
};

// A slot holds, of kStrips strips that meet the same operand: [strip][codes], then [strip][scales].
template <int kStrips>
inline constexpr int kSlotBytes = kStrips*(kPieceCodes + kPieceScales);

// sum[i] (rows g, g + 8; right where t = 0) += a slot's chunk of strip i times column 0 of the operand.
template <int kStrips>
__device__ void mxfp4_chunk(float (&sum)[kStrips][2], uint32_t slot, int lane, float x_scale, uint32_t operand) {
  const uint32_t codes = slot + lane * 16, scale_at = slot + kStrips * kPieceCodes + lane / 4 * 8;
  uint2 scales[kStrips];
  float part[kStrips][2] = {};
#pragma unroll
  for (int i = 0; i < kStrips; ++i) scales[i] = load_shared8(scale_at + i * kPieceScales);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 w[kStrips];
#pragma unroll
    for (int i = 0; i < kStrips; ++i) w[i] = load_shared16(codes + i * kPieceCodes + half * 512);
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
    sum[i][1] = __fmaf_rn(part[i][1], factor, sum[i][1]);
  }
}

// Half an FP8 chunk: four steps into acc.
template <int kStrips>
__device__ void fp8_half(float (&acc)[kStrips][4], uint32_t slot, int lane, uint32_t operand) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint2 b_even = load_shared8(operand + 2 * i * 32), b_odd = load_shared8(operand + (2 * i + 1) * 32);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      OperandA even, odd;
      fp8_operands(load_shared16(slot + s * kPieceCodes + i * 512 + lane * 16), even, odd);
      mma_f16(acc[s], even, b_even);
      mma_f16(acc[s], odd, b_odd);
    }
  }
}

// A strip's sums of one group, by the lanes t = 0; then their sum over groups, in order.
__device__ void put_column(float* to, const float (&sum)[2], int g, int t) {
  if (t != 0) return;
  to[g] = sum[0];
  to[g + 8] = sum[1];
}
__device__ float add_column(const float* at) {
  float total = at[0];
#pragma unroll
  for (int q = 1; q < kWarps; ++q) total = __fadd_rn(total, at[q * kStripRows]);
  return total;
}

// 128 values into operand form, by a warp.
__device__ void put_operand(float4 v, uint8_t* terms, float* scale, int lane) {
  const ActivationBlock block = activation_block<Operand::kE4M3>(v);
  *reinterpret_cast<uint2*>(terms + 8 * lane) = block.term[0];
  if (lane == 0) *scale = block.scale;
}

__device__ void set_barrier(int set) { asm volatile("bar.sync %0, %1;" ::"r"(1 + set), "n"(kSetThreads) : "memory"); }

// What a warp copies next: pieces left of an item, and this lane's part of them. Lane l of the first 4 kStrips copies scales of strip l / 4.
template <int kStrips>
struct Source {
  int left = 0;
  bool scaled = false;
  const uint8_t *codes[kStrips] = {}, *scales = nullptr;

  __device__ void open_fp8(const uint8_t* const (&data)[kStrips], int64_t chunk, int chunks, int lane) {
    left = 2 * chunks;
    scaled = false;
#pragma unroll
    for (int i = 0; i < kStrips; ++i) codes[i] = data[i] + chunk * kFp8ChunkBytes + lane * 16;
  }
  __device__ void open_mxfp4(const uint8_t* const (&data)[kStrips], const uint8_t* const (&scale)[kStrips], int64_t chunk, int chunks, int lane) {
    left = chunks;
    scaled = lane < 4 * kStrips;
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      codes[i] = data[i] + chunk * kMxfp4ChunkBytes + lane * 16;
      if (lane / 4 == i) scales = scale[i] + chunk * kPieceScales + lane % 4 * 16;
    }
  }
  __device__ void copy(uint32_t slot, int lane) {
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      copy16_async(slot + i * kPieceCodes + lane * 16, codes[i]);
      copy16_async(slot + i * kPieceCodes + 512 + lane * 16, codes[i] + 512);
      codes[i] += kPieceCodes;
    }
    if (scaled) copy16_async(slot + kStrips * kPieceCodes + lane * 16, scales);
    scales += kPieceScales;
    --left;
  }
};

// An item of a set of all_up_row.
struct Item {
  int k;  // of the choices; -1: the shared expert; -2: beyond the last
  int strip;
};

// Item i of a set. A block has every gridDim-th strip of the shared expert, counted from the last block, and every gridDim-th of all the choices' strips,
// counted from the first one: so the blocks with a strip more of the one tend to have one less of the other. Sets take them in turn; one strip of the
// shared expert, which is twice as long as others, counts twice.
__device__ Item item_of(const AllArgs& a, int set, int i) {
  const int blocks = static_cast<int>(gridDim.x), first_shared = blocks - 1 - static_cast<int>(blockIdx.x);
  const int shared_count = first_shared < a.ffn_strips ? (a.ffn_strips - 1 - first_shared) / blocks + 1 : 0;
  int item = kSets * i + set;
  if (shared_count == 1) item = set == 0 ? (i == 0 ? 0 : 3 * i + 2) : i < 2 ? 2 * i + set : 3 * i - 1 + set;
  if (item < shared_count) return {-1, first_shared + item * blocks};
  const int j = item - shared_count;  // of the choices' strips
  const int unit = static_cast<int>(blockIdx.x) + j * blocks;
  if (unit >= a.topk * a.ffn_strips) return {-2, 0};
  return {unit / a.ffn_strips, unit % a.ffn_strips};
}

__global__ void __launch_bounds__(kThreads, 1) all_up_row(const __grid_constant__ AllArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Item items[kSets][kMostItems];
  __shared__ int32_t chosen[kMostTopk];
  __shared__ float routing[kMostTopk];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32 % kWarps, set = tid / kSetThreads, g = lane / 4, t = lane % 4;
  const int chunks = a.hidden_chunks;
  const int first_chunk = static_cast<int>(group_begin(warp, chunks)), own = static_cast<int>(group_begin(warp + 1, chunks)) - first_chunk;
  uint8_t* const terms = shared + kSets * kWarps * kUpDepth * kSlotBytes<2>;
  uint32_t* const zeros = reinterpret_cast<uint32_t*>(terms + chunks * kTermBytes);
  float* const sums = reinterpret_cast<float*>(zeros) + kZeroBytes / 4;  // [sets][2 buffers][gate, up][groups][16]
  float* const scales = sums + kSets * 4 * kSumFloats;
  const uint8_t** const tables = reinterpret_cast<const uint8_t**>(scales + (chunks + 1) / 2 * 2);  // of every expert: w1, w3, their scales
  const uint32_t ring = shared_address(shared) + (set * kWarps + warp) * kUpDepth * kSlotBytes<2>, ring_end = ring + kUpDepth * kSlotBytes<2>;
  if (tid % kSetThreads < kMostItems) items[set][tid % kSetThreads] = item_of(a, set, tid % kSetThreads);
  if (tid < kZeroBytes / 4) zeros[tid] = 0;
  __syncthreads();

  const Item* next_item = items[set];
  Source<2> source;
  // Opens the next item, if there is one that is known to be wanted.
  const auto open = [&](bool routed) {
    while (next_item->k != -2 && (routed || next_item->k == -1)) {
      const Item item = *next_item++;
      const int64_t chunk = static_cast<int64_t>(item.strip) * chunks + first_chunk;
      if (item.k == -1) {
        source.open_fp8({a.w1, a.w3}, chunk, own, lane);
      } else {
        const int32_t e = chosen[item.k];
        if (e < 0) continue;
        const uint8_t* const* const of = tables + 4 * e;
        source.open_mxfp4({of[0], of[1]}, {of[2], of[3]}, chunk, own, lane);
      }
      return;
    }
  };
  const auto copy_next = [&](uint32_t slot) {
    if (source.left == 0 && own != 0) open(true);
    if (source.left != 0) source.copy(slot, lane);
    commit_copies();
  };
  uint32_t slot = ring;
  if (own != 0) open(false);
  int primed = 0;
#pragma unroll 1
  while (primed < kUpDepth && source.left != 0) {
    source.copy(ring + primed++ * kSlotBytes<2>, lane);
    commit_copies();
    if (source.left == 0) open(false);
  }
  for (int e = tid - kSetThreads; e < a.table.num_experts; e += kThreads - kSetThreads) {
    if (set == 0) break;  // it has copies under way
    tables[4 * e] = a.table.w1[e];
    tables[4 * e + 1] = a.table.w3[e];
    tables[4 * e + 2] = a.table.w1_scale[e];
    tables[4 * e + 3] = a.table.w3_scale[e];
  }
  wait_previous();
  allow_next();
  // x before the weights of the choices: it would wait behind them.
  constexpr int kHeldChunks = 2;
  float4 held[kHeldChunks];
#pragma unroll
  for (int i = 0; i < kHeldChunks; ++i) {
    const int c = tid / 32 + i * kSets * kWarps;
    if (c < chunks) held[i] = load_four(a.x + c * kChunkColumns + 4 * lane);
  }
  if (tid < a.topk) {
    chosen[tid] = a.experts[tid];
    routing[tid] = a.weights[tid];
  }
  __syncthreads();
#pragma unroll 1
  while (primed < kUpDepth) copy_next(ring + primed++ * kSlotBytes<2>);
#pragma unroll
  for (int i = 0; i < kHeldChunks; ++i) {
    const int c = tid / 32 + i * kSets * kWarps;
    if (c < chunks) put_operand(held[i], terms + c * kTermBytes, scales + c, lane);
  }
  for (int c = tid / 32 + kHeldChunks * kSets * kWarps; c < chunks; c += kSets * kWarps) {
    put_operand(load_four(a.x + c * kChunkColumns + 4 * lane), terms + c * kTermBytes, scales + c, lane);
  }
  __syncthreads();

  const uint32_t operand = (g == 0 ? shared_address(terms) + first_chunk * kTermBytes : shared_address(zeros) + kZeroShift) + 8 * t;
  const uint32_t chunk_stride = g == 0 ? kTermBytes : 0;
  const auto wait_slot = [&] {
    wait_copies<kUpDepth - 1>();
    __syncwarp();
  };
  const auto next_slot = [&] {  // the slot is used: it takes what comes next
    __syncwarp();
    copy_next(slot);
    slot += kSlotBytes<2>;
    if (slot == ring_end) slot = ring;
  };
  int buffer = 0;
  for (const Item* at = items[set]; at->k != -2; ++at) {
    const int k = at->k, strip = at->strip;
    if (k >= 0 && chosen[k] < 0) continue;
    float both[2][2] = {};  // gate, up
    if (k < 0) {
      float gate_scale = 0, up_scale = 0;
      if (lane < own) {
        const int64_t block = static_cast<int64_t>(strip) / (kFp8WeightBlock / kStripRows) * chunks + first_chunk + lane;
        gate_scale = decode_e8m0(a.w1_scale[block]);
        up_scale = decode_e8m0(a.w3_scale[block]);
      }
#pragma unroll 1
      for (int c = 0; c < own; ++c) {
        float acc[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          wait_slot();
          fp8_half(acc, slot, lane, operand + c * chunk_stride + half * (chunk_stride / 2));
          next_slot();
        }
        const float x_scale = scales[first_chunk + c];
        const float factor[2] = {__fmul_rn(x_scale, shuffle_from(gate_scale, c)), __fmul_rn(x_scale, shuffle_from(up_scale, c))};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          both[i][0] = __fmaf_rn(acc[i][0], factor[i], both[i][0]);
          both[i][1] = __fmaf_rn(acc[i][2], factor[i], both[i][1]);
        }
      }
    } else {
#pragma unroll 1
      for (int c = 0; c < own; ++c) {
        wait_slot();
        mxfp4_chunk<2>(both, slot, lane, scales[first_chunk + c], operand + c * chunk_stride);
        next_slot();
      }
    }
    float* const to = sums + (set * 2 + buffer) * 2 * kSumFloats;
    put_column(to + warp * kStripRows, both[0], g, t);
    put_column(to + kSumFloats + warp * kStripRows, both[1], g, t);
    set_barrier(set);
    const int row = tid % kSetThreads;
    if (row < kStripRows) {
      const float act = swiglu_value(add_column(to + row), add_column(to + kSumFloats + row), a.limit);
      a.act[static_cast<int64_t>(k < 0 ? a.topk : k) * a.table.ffn_dim + strip * kStripRows + row] = k < 0 ? act : __fmul_rn(act, routing[k]);
    }
    buffer ^= 1;
  }
}

// An item is two neighbouring strips of w2.
__global__ void __launch_bounds__(kThreads, 1) all_down_row(const __grid_constant__ AllArgs a) {
  constexpr int kStrips = 2;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ const uint8_t *chosen[kMostTopk], *chosen_scale[kMostTopk];  // w2; null: none
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32 % kWarps, set = tid / kSetThreads, g = lane / 4, t = lane % 4;
  const int chunks = a.ffn_chunks, strips = a.hidden_strips, experts = a.topk + 1;
  const int first_chunk = static_cast<int>(group_begin(warp, chunks)), own = static_cast<int>(group_begin(warp + 1, chunks)) - first_chunk;
  uint8_t* const terms = shared + kSets * kWarps * kDownDepth * kSlotBytes<kStrips>;
  uint32_t* const zeros = reinterpret_cast<uint32_t*>(terms + experts * chunks * kTermBytes);
  float* const sums = reinterpret_cast<float*>(zeros) + kZeroBytes / 4;  // [topk + 1][strips][groups][16]
  float* const scales = sums + experts * kStrips * kSumFloats;
  const uint32_t ring = shared_address(shared) + (set * kWarps + warp) * kDownDepth * kSlotBytes<kStrips>, ring_end = ring + kDownDepth * kSlotBytes<kStrips>;
  if (tid < kZeroBytes / 4) zeros[tid] = 0;
  if (tid < a.topk) {
    const int32_t e = a.experts[tid];  // older than the previous kernel, which waited for it
    chosen[tid] = e < 0 ? nullptr : a.table.w2[e];
    chosen_scale[tid] = e < 0 ? nullptr : a.table.w2_scale[e];
  }
  __syncthreads();

  // The set's experts of an item: of topk + 2 shares the shared expert is the first two, choice k is share k + 2. -1: the shared expert.
  const auto first_of = [&](int s) { return s == 0 ? -1 : max((s * (a.topk + 2) + kSets - 1) / kSets - 2, 0); };
  const int first_expert = first_of(set), last_expert = set + 1 == kSets ? a.topk : first_of(set + 1);
  const int first_strip = kStrips * static_cast<int>(blockIdx.x), step = kStrips * static_cast<int>(gridDim.x);
  int ahead_strip = first_strip, ahead_k = first_expert;
  // A set whose choices are all none would look for one forever.
  bool any = first_expert < 0;
  for (int k = first_expert < 0 ? 0 : first_expert; k < last_expert; ++k) any |= chosen[k] != nullptr;
  if (!any || own == 0) ahead_strip = strips;
  Source<kStrips> source;
  const auto copy_next = [&](uint32_t to) {
    while (source.left == 0 && ahead_strip < strips) {
      if (ahead_k >= last_expert) {
        ahead_strip += step;
        ahead_k = first_expert;
        continue;
      }
      const int64_t chunk = static_cast<int64_t>(ahead_strip) * chunks + first_chunk;
      const int64_t apart = ahead_strip + 1 < strips ? chunks : 0;  // an odd last strip is read twice
      if (ahead_k < 0) {
        source.open_fp8({a.w2, a.w2 + apart * kFp8ChunkBytes}, chunk, own, lane);
      } else if (const uint8_t* const w2 = chosen[ahead_k]; w2 != nullptr) {
        const uint8_t* const scale = chosen_scale[ahead_k];
        source.open_mxfp4({w2, w2 + apart * kPieceCodes}, {scale, scale + apart * kPieceScales}, chunk, own, lane);
      }
      ++ahead_k;
    }
    if (source.left != 0) source.copy(to, lane);
    commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < kDownDepth; ++i) copy_next(ring + i * kSlotBytes<kStrips>);
  wait_previous();
  allow_next();
  if (tid == 0) bring_to_l2(a.soon);
  // The warp's chunks of all its experts: loads of the first ones together.
  constexpr int kHeldRows = 3, kHeldChunks = 2;
  const auto row_of = [&](int k) { return k < 0 ? a.topk : k; };
  const auto wanted = [&](int k) { return k < last_expert && (k < 0 || chosen[k] != nullptr); };
  const auto load_act = [&](int k, int c) {
    return load_four(a.act + (static_cast<int64_t>(row_of(k)) * chunks + first_chunk + c) * kChunkColumns + 4 * lane);
  };
  const auto put_act = [&](float4 v, int k, int c) {
    const int at = row_of(k) * chunks + first_chunk + c;
    put_operand(v, terms + at * kTermBytes, scales + at, lane);
  };
  float4 held[kHeldRows][kHeldChunks];
#pragma unroll
  for (int i = 0; i < kHeldRows; ++i) {
    if (!wanted(first_expert + i)) continue;
#pragma unroll
    for (int c = 0; c < kHeldChunks; ++c) {
      if (c < own) held[i][c] = load_act(first_expert + i, c);
    }
  }
#pragma unroll
  for (int i = 0; i < kHeldRows; ++i) {
    if (!wanted(first_expert + i)) continue;
#pragma unroll
    for (int c = 0; c < kHeldChunks; ++c) {
      if (c < own) put_act(held[i][c], first_expert + i, c);
    }
  }
  for (int k = first_expert; k < last_expert; ++k) {
    if (!wanted(k)) continue;
    for (int c = k < first_expert + kHeldRows ? kHeldChunks : 0; c < own; ++c) put_act(load_act(k, c), k, c);
  }
  __syncwarp();

  uint32_t slot = ring;
  const auto wait_slot = [&] {
    wait_copies<kDownDepth - 1>();
    __syncwarp();
  };
  const auto next_slot = [&] {
    __syncwarp();
    copy_next(slot);
    slot += kSlotBytes<kStrips>;
    if (slot == ring_end) slot = ring;
  };
  for (int strip = first_strip; strip < strips; strip += step) {
    if (strip != first_strip) __syncthreads();  // the sums are read
    for (int k = first_expert; k < last_expert; ++k) {
      if (!wanted(k)) continue;
      const int row = row_of(k);
      const uint32_t operand = (g == 0 ? shared_address(terms) + (row * chunks + first_chunk) * kTermBytes : shared_address(zeros) + kZeroShift) + 8 * t;
      const uint32_t chunk_stride = g == 0 ? kTermBytes : 0;
      const float* const x_scales = scales + row * chunks + first_chunk;
      float sum[kStrips][2] = {};
      if (k < 0) {
        float scale[kStrips] = {};
        if (lane < own) {
#pragma unroll
          for (int i = 0; i < kStrips; ++i) {
            const int at = strip + i < strips ? strip + i : strip;
            scale[i] = decode_e8m0(a.w2_scale[static_cast<int64_t>(at) / (kFp8WeightBlock / kStripRows) * chunks + first_chunk + lane]);
          }
        }
#pragma unroll 1
        for (int c = 0; c < own; ++c) {
          float acc[kStrips][4] = {};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            wait_slot();
            fp8_half(acc, slot, lane, operand + c * chunk_stride + half * (chunk_stride / 2));
            next_slot();
          }
#pragma unroll
          for (int i = 0; i < kStrips; ++i) {
            const float factor = __fmul_rn(x_scales[c], shuffle_from(scale[i], c));
            sum[i][0] = __fmaf_rn(acc[i][0], factor, sum[i][0]);
            sum[i][1] = __fmaf_rn(acc[i][2], factor, sum[i][1]);
          }
        }
      } else {
#pragma unroll 1
        for (int c = 0; c < own; ++c) {
          wait_slot();
          mxfp4_chunk<kStrips>(sum, slot, lane, x_scales[c], operand + c * chunk_stride);
          next_slot();
        }
      }
#pragma unroll
      for (int i = 0; i < kStrips; ++i) put_column(sums + ((row * kStrips + i) * kWarps + warp) * kStripRows, sum[i], g, t);
    }
    __syncthreads();
    if (const int i = tid / kStripRows; i < kStrips && strip + i < strips) {
      const float* const at = sums + i * kSumFloats + tid % kStripRows;
      float total = add_column(at + a.topk * kStrips * kSumFloats);
      for (int k = 0; k < a.topk; ++k) {
        if (chosen[k] != nullptr) total = __fadd_rn(total, add_column(at + k * kStrips * kSumFloats));
      }
      a.y[strip * kStripRows + tid] = total;
    }
  }
}

// Sizes of the launches.
struct Shapes {
  LaunchShape up, down;
};
Shapes shapes_of(const GpuContext& gpu, const MoeAllArgs& a) {
  const ExpertTable& e = a.routed.table;
  const int up_chunks = static_cast<int>(e.hidden_dim / kChunkColumns), down_chunks = static_cast<int>(e.ffn_dim / kChunkColumns),
            experts = static_cast<int>(a.routed.experts.cols) + 1;
  const int64_t processors = gpu.properties.multiprocessors;
  const int up_bytes = kSets * kWarps * kUpDepth * kSlotBytes<2> + up_chunks * kTermBytes + kZeroBytes +
                       4 * (kSets * 4 * kSumFloats + (up_chunks + 1) / 2 * 2) + 32 * static_cast<int>(e.num_experts);
  const int down_bytes =
      kSets * kWarps * kDownDepth * kSlotBytes<2> + experts * down_chunks * kTermBytes + kZeroBytes + 4 * (2 * experts * kSumFloats + experts * down_chunks);
  return {{.blocks_x = std::min(experts * e.ffn_dim / kStripRows, processors), .threads = kThreads, .shared_bytes = up_bytes},
          {.blocks_x = std::min(ceil_div(e.hidden_dim / kStripRows, 2), processors), .threads = kThreads, .shared_bytes = down_bytes}};
}

bool fits(const GpuContext& gpu, const MoeAllArgs& a) {
  const ExpertTable& e = a.routed.table;
  const auto in_strips = [&](int64_t n, int64_t k) {
    return fits_strips(WeightFormat::kFp8Block, n, k) && fits_strips(WeightFormat::kMxfp4, n, k) && k <= kMaxK;
  };
  const auto fp8 = [](const WeightView& w) { return w.format == WeightFormat::kFp8Block; };
  if (a.routed.x.rows != 1 || a.routed.rounding != ActivationRounding::kE4M3 || e.format != WeightFormat::kMxfp4 || !fp8(a.w1) || !fp8(a.w3) || !fp8(a.w2) ||
      a.w1.n != e.ffn_dim || a.routed.experts.cols > kMostTopk || e.num_experts > kMostExperts || !in_strips(e.ffn_dim, e.hidden_dim) ||
      !in_strips(e.hidden_dim, e.ffn_dim)) {
    return false;
  }
  const Shapes shapes = shapes_of(gpu, a);
  constexpr int64_t kStatic = 512;  // of either kernel, rounded up
  return std::max(shapes.up.shared_bytes, shapes.down.shared_bytes) + kStatic <= gpu.properties.shared_bytes_per_block &&
         (a.routed.experts.cols + 1) * e.ffn_dim / kStripRows <= 2 * kMostItems * shapes.up.blocks_x;
}

}  // namespace

Status moe_all_strips(OpContext& context, const MoeAllArgs& a) {
  GpuContext& gpu = gpu_context(context);
  const MoeExpertsArgs& r = a.routed;
  if (!fits(gpu, a)) {
    DSV4_RETURN_IF_ERROR(linear_strips(context, {r.x, r.rounding, 2, {{a.w1, a.gate}, {a.w3, a.up}}}));
    DSV4_RETURN_IF_ERROR(swiglu_portable(context, {a.gate, a.up, r.limit, a.gate}));
    DSV4_RETURN_IF_ERROR(linear_strips(context, {a.gate, r.rounding, 1, {{a.w2, r.y}}}));
    return moe_experts_strips(context, r);
  }
  const int topk = static_cast<int>(r.experts.cols);
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(4 * (topk + 1) * r.table.ffn_dim));
  AllArgs args{r.table,
               a.w1.data,
               a.w1.scale,
               a.w3.data,
               a.w3.scale,
               a.w2.data,
               a.w2.scale,
               r.x.data,
               r.experts.data,
               r.weights.data,
               topk,
               r.limit,
               reinterpret_cast<float*>(scratch),
               r.y.data,
               take_read_soon(gpu),
               0,
               0,
               0,
               0};
  args.hidden_chunks = static_cast<int>(r.table.hidden_dim / kChunkColumns);
  args.hidden_strips = static_cast<int>(r.table.hidden_dim / kStripRows);
  args.ffn_chunks = static_cast<int>(r.table.ffn_dim / kChunkColumns);
  args.ffn_strips = static_cast<int>(r.table.ffn_dim / kStripRows);
  const Shapes shapes = shapes_of(gpu, a);
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_all (up)", all_up_row, shapes.up, args));
  return launch(gpu, "moe_all (down)", all_down_row, shapes.down, args);
}

}  // namespace dsv4::gpu
