// The topk highest of scores that lie spread over the shared memory of a cluster: block r of kSelectBlocks holds rows first .. first + n of them, behind
// those of the blocks before it. Passes over digits of 11, 11 and 10 bits: every block counts its own rows, the first block adds the counts and says
// which digit holds the threshold; a pass that leaves no choice is the last. Then blocks tell each other how many rows they take, and write theirs behind
// those of the blocks before them: in ascending order, of equal scores the lowest rows. Exact on any input, like portable/select_topk.cu.
// Two cluster barriers a pass and one more: 2.4 us a pass of 65,536 rows, 1.3 for the rest. Rows that fit one block's memory it chooses alone (kBlocks 1).
#pragma once

#include "backends/gpu/runtime/cluster.h"
#include "backends/gpu/runtime/kernel.h"

namespace dsv4::gpu {

inline constexpr int kSelectBlocks = 16;
inline constexpr int kSelectThreads = 256;
inline constexpr int kSelectGroups = kSelectThreads / kGroupLanes;
inline constexpr int kSelectBins = 2048;
inline constexpr int kSelectBinsPerThread = kSelectBins / kSelectThreads;

// What a block keeps for it.
struct ClusterChoice {
  alignas(16) uint32_t own[kSelectBins];
  alignas(16) uint32_t total[kSelectBins];  // of all blocks; used in the first one
  uint32_t digit, needed;                   // said by the first block: the threshold's digit, kLastPass; how many of its rows are wanted
  uint32_t above[kSelectBlocks], equal[kSelectBlocks];
  uint32_t group_above[kSelectGroups], group_equal[kSelectGroups];
  uint32_t group_total[kSelectGroups];
};
inline constexpr uint32_t kLastPass = 0x80000000u;

// Rows of a block: whole pieces of 16, so that all but the last block have as many.
__host__ __device__ inline int64_t select_rows_per_block(int64_t count) { return (count + 16 * kSelectBlocks - 1) / (16 * kSelectBlocks) * 16; }

// By all threads, before they arrive at the cluster barrier behind which select_in_cluster starts.
__device__ inline void clear_choice(ClusterChoice& c) {
  uint4* const own = reinterpret_cast<uint4*>(c.own);
  uint4* const total = reinterpret_cast<uint4*>(c.total);
  for (int i = static_cast<int>(threadIdx.x); i < kSelectBins / 4; i += kSelectThreads) own[i] = total[i] = {0, 0, 0, 0};
}

template <int kBlocks>
__device__ inline void select_barrier() {
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}

// By the first block: finds the highest bin with which `needed` rows are reached and tells all; empties the bins.
template <int kBlocks>
__device__ inline void choose_digit(ClusterChoice& c, uint32_t needed) {
  const int tid = static_cast<int>(threadIdx.x), lane = group_lane(), group = group_index();
  // Thread i has kSelectBinsPerThread bins, the first thread the topmost.
  uint4* const at = reinterpret_cast<uint4*>(c.total + kSelectBins - kSelectBinsPerThread * (tid + 1));
  static_assert(kSelectBinsPerThread == 8);
  const uint4 low = at[0], high = at[1];
  const uint32_t bins[kSelectBinsPerThread] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
  at[0] = at[1] = {0, 0, 0, 0};
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kSelectBinsPerThread; ++i) mine += bins[i];
  uint32_t through = mine;
#pragma unroll
  for (int step = 1; step < kGroupLanes; step *= 2) {
    const uint32_t other = shuffle_from(through, lane < step ? lane : lane - step);
    if (lane >= step) through += other;
  }
  if (lane == kGroupLanes - 1) c.group_total[group] = through;
  __syncthreads();
  uint32_t before = through - mine;
#pragma unroll
  for (int i = 0; i < kSelectGroups; ++i) before += i < group ? c.group_total[i] : 0u;
  const bool here = before < needed && before + mine >= needed;
  const uint32_t who = group_ballot(here);
  if (who == 0) return;
  uint32_t digit = 0, wanted = 0;
#pragma unroll
  for (int i = 0; i < kSelectBinsPerThread; ++i) {
    if (before < needed && before + bins[i] >= needed) {
      wanted = needed - before;
      digit = static_cast<uint32_t>(kSelectBins - 1 - kSelectBinsPerThread * tid - i) | (wanted == bins[i] ? kLastPass : 0u);
    }
    before += bins[i];
  }
  digit = shuffle_from(digit, __ffs(static_cast<int>(who)) - 1);
  wanted = shuffle_from(wanted, __ffs(static_cast<int>(who)) - 1);
  if constexpr (kBlocks == 1) {
    c.digit = digit;
    c.needed = wanted;
  } else if (lane < kBlocks) {
    store_in_cluster(&c.digit, static_cast<uint32_t>(lane), digit);
    store_in_cluster(&c.needed, static_cast<uint32_t>(lane), wanted);
  }
}

// All threads of all kBlocks blocks call, behind a cluster barrier after clear_choice; scores are in ordered form. More than topk rows in all. Nobody touches
// another block's memory after the last barrier.
template <int kBlocks>
__device__ inline void select_in_cluster(ClusterChoice& c, const uint32_t* scores, int n, int first, int topk, int32_t* out, uint32_t rank) {
  const int tid = static_cast<int>(threadIdx.x), lane = group_lane(), group = group_index();
  uint32_t threshold = 0, mask = 0, needed = static_cast<uint32_t>(topk);
  constexpr int kShift[3] = {21, 10, 0};
  constexpr uint32_t kDigits[3] = {2047, 2047, 1023};
#pragma unroll
  for (int pass = 0; pass < 3; ++pass) {
    __syncthreads();  // the scores are there
    uint32_t* const bins = kBlocks == 1 ? c.total : c.own;
    for (int j = tid; j < n; j += kSelectThreads) {
      const uint32_t v = scores[j];
      if ((v & mask) == threshold) atomicAdd(&bins[v >> kShift[pass] & kDigits[pass]], 1u);
    }
    __syncthreads();
    if constexpr (kBlocks > 1) {
#pragma unroll
      for (int i = 0; i < kSelectBinsPerThread; ++i) {
        const int bin = tid + i * kSelectThreads;
        const uint32_t rows = c.own[bin];
        if (rows == 0) continue;
        c.own[bin] = 0;
        add_in_cluster(&c.total[bin], 0, rows);
      }
      select_barrier<kBlocks>();
    }
    if (rank == 0) choose_digit<kBlocks>(c, needed);
    select_barrier<kBlocks>();
    const uint32_t digit = c.digit;
    needed = c.needed;
    threshold |= (digit & ~kLastPass) << kShift[pass];
    mask |= kDigits[pass] << kShift[pass];
    if ((digit & kLastPass) != 0) break;
  }

  // Above the threshold all are taken, of those equal to it the first `needed`. A group has neighbouring rows.
  const int per_group = (n + kSelectThreads - 1) / kSelectThreads * kGroupLanes;
  const int begin = group * per_group < n ? group * per_group : n, end = begin + per_group < n ? begin + per_group : n;
  uint32_t above_here = 0, equal_here = 0;
  for (int j = begin; j < end; j += kGroupLanes) {
    const uint32_t v = j + lane < end ? scores[j + lane] & mask : 0u;
    above_here += __popc(group_ballot(v > threshold));
    equal_here += __popc(group_ballot(j + lane < end && v == threshold));
  }
  if (lane == 0) {
    c.group_above[group] = above_here;
    c.group_equal[group] = equal_here;
  }
  __syncthreads();
  if (kBlocks > 1 && tid < kBlocks) {
    uint32_t above = 0, equal = 0;
#pragma unroll
    for (int i = 0; i < kSelectGroups; ++i) {
      above += c.group_above[i];
      equal += c.group_equal[i];
    }
    store_in_cluster(&c.above[rank], static_cast<uint32_t>(tid), above);
    store_in_cluster(&c.equal[rank], static_cast<uint32_t>(tid), equal);
  }
  if constexpr (kBlocks > 1) select_barrier<kBlocks>();
  uint32_t above_before = 0, equal_before = 0;
  if constexpr (kBlocks > 1) {
    for (uint32_t i = 0; i < rank; ++i) {
      above_before += c.above[i];
      equal_before += c.equal[i];
    }
  }
  for (int i = 0; i < group; ++i) {
    above_before += c.group_above[i];
    equal_before += c.group_equal[i];
  }
  for (int j = begin; j < end; j += kGroupLanes) {
    const bool inside = j + lane < end;
    const uint32_t v = inside ? scores[j + lane] & mask : 0u;
    const uint32_t above_bits = group_ballot(inside && v > threshold), equal_bits = group_ballot(inside && v == threshold), lower = (1u << lane) - 1u;
    const uint32_t above_rank = above_before + __popc(above_bits & lower), equal_rank = equal_before + __popc(equal_bits & lower);
    const bool taken = inside && (v > threshold || (v == threshold && equal_rank < needed));
    if (taken) out[above_rank + (equal_rank < needed ? equal_rank : needed)] = static_cast<int32_t>(first + j + lane);
    above_before += __popc(above_bits);
    equal_before += __popc(equal_bits);
  }
}

}  // namespace dsv4::gpu
