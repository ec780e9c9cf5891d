// sort_pairs: one block. Each warp owns a contiguous range of pairs and counts it by expert, 32 pairs at a time: lanes of one expert find each other.
// Then the warps' counts become offsets, the experts' totals starts and units, and each warp writes its pairs where they belong. Latency-bound.
#include "backends/gpu/sm90/moe_sort.h"

namespace dsv4::gpu {
namespace {

constexpr int kWarps = 32;
constexpr int kThreads = kWarps * 32;

struct SortArgs {
  Rows<const int32_t> experts;
  int64_t pairs;
  int topk, num_experts, unit_rows;
  Units out;
};

__device__ int inclusive_scan(int v, int lane) {
  for (int step = 1; step < 32; step *= 2) {
    const int other = shuffle_from(v, lane < step ? lane : lane - step);
    if (lane >= step) v += other;
  }
  return v;
}

__global__ void __launch_bounds__(kThreads) sort_pairs_block(const __grid_constant__ SortArgs a) {
  extern __shared__ int32_t shared[];
  int32_t* counts = shared;                           // [warps][experts], later offsets
  int32_t* totals = counts + kWarps * a.num_experts;  // [experts]
  int32_t* starts = totals + a.num_experts;           // [experts]
  int32_t* first_unit = starts + a.num_experts;       // [experts]
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  for (int i = tid; i < kWarps * a.num_experts; i += kThreads) counts[i] = 0;
  wait_previous();
  allow_next();
  __syncthreads();
  const int64_t per_warp = (a.pairs + kThreads - 1) / kThreads * 32, begin = warp * per_warp, end = begin + per_warp < a.pairs ? begin + per_warp : a.pairs;
  int32_t* mine = counts + warp * a.num_experts;
  const auto each = [&](auto&& found) {
    for (int64_t p0 = begin; p0 < end; p0 += 32) {
      const int64_t p = p0 + lane;
      const int32_t e = p < end ? a.experts.row(p / a.topk)[p % a.topk] : -1;
      const uint32_t same = __match_any_sync(0xffffffffu, e);
      found(p, e, same, __popc(same & ((1u << lane) - 1u)));
      __syncwarp();
    }
  };
  each([&](int64_t, int32_t e, uint32_t same, int rank) {
    if (e >= 0 && rank == 0) mine[e] += __popc(same);
  });
  __syncthreads();
  for (int e = tid; e < a.num_experts; e += kThreads) {
    int run = 0;
    for (int w = 0; w < kWarps; ++w) {
      const int count = counts[w * a.num_experts + e];
      counts[w * a.num_experts + e] = run;
      run += count;
    }
    totals[e] = run;
  }
  __syncthreads();
  if (warp == 0) {
    int start = 0, unit = 0;
    for (int e0 = 0; e0 < a.num_experts; e0 += 32) {
      const int e = e0 + lane, count = e < a.num_experts ? totals[e] : 0, units = (count + a.unit_rows - 1) / a.unit_rows;
      const int places = (count + a.out.align - 1) / a.out.align * a.out.align;
      const int through = inclusive_scan(places, lane), units_through = inclusive_scan(units, lane);
      if (e < a.num_experts) {
        starts[e] = start + through - places;
        first_unit[e] = unit + units_through - units;
      }
      start += shuffle_from(through, 31);
      unit += shuffle_from(units_through, 31);
    }
    if (lane == 0) *a.out.count = unit;
  }
  __syncthreads();
  each([&](int64_t p, int32_t e, uint32_t same, int rank) {
    if (e >= 0) a.out.pairs[starts[e] + mine[e] + rank] = static_cast<int32_t>(p);
    __syncwarp();
    if (e >= 0 && rank == 0) mine[e] += __popc(same);
  });
  for (int e = warp; e < a.num_experts; e += kWarps) {
    for (int u = lane; u * a.unit_rows < totals[e]; u += 32) {
      a.out.expert[first_unit[e] + u] = e;
      a.out.first[first_unit[e] + u] = starts[e] + u * a.unit_rows;
      a.out.rows[first_unit[e] + u] = min(a.unit_rows, totals[e] - u * a.unit_rows);
    }
  }
}

}  // namespace

Status sort_pairs(GpuContext& gpu, Rows<const int32_t> experts, int64_t tokens, int64_t topk, int64_t num_experts, int unit_rows, const Units& out) {
  const SortArgs args = {experts, tokens * topk, static_cast<int>(topk), static_cast<int>(num_experts), unit_rows, out};
  return launch(gpu, "moe_experts (sort)", sort_pairs_block, {.threads = kThreads, .shared_bytes = static_cast<int>(4 * (kWarps + 3) * num_experts)}, args);
}

}  // namespace dsv4::gpu
