// hc_pre of few tokens in one launch: a cluster of 16 blocks per token keeps everything in registers and in each other's shared memory. A block has four
// slices of 256 values, seven lane groups each: a group holds its columns of four rows of fn (loaded before the previous kernel ends), makes their parts of
// the mixes, and stores them where they are needed. Two groups of each block then make 256 columns of x; the last block makes post and comb
// beside that. Sums are those of portable/hc_pre.cu, to the bit.
// Bound by latency: two cluster barriers, and the Sinkhorn iterations of one thread beside the second.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/hc_pre.h"
#include "backends/gpu/runtime/cluster.h"

namespace dsv4::gpu {
namespace {

constexpr int kBlocks = 16;
constexpr int64_t kDim = 4096;
constexpr int kStreams = 4, kMixes = (2 + kStreams) * kStreams;
constexpr int kSlices = static_cast<int>(kStreams * kDim) / kHcSlice, kSlicesPerBlock = kSlices / kBlocks;
constexpr int kGroupsPerSlice = kMixes / kHcMixesPerGroup + 1;  // the last one makes f.f
constexpr int kThreads = kSlicesPerBlock * kGroupsPerSlice * kGroupLanes;
constexpr int kXGroups = 2;                       // of each block: 128 columns each
constexpr int kCombSums = kMixes - kStreams + 1;  // mixes of post and comb, f.f
constexpr int64_t kMostRows = 4;
static_assert(kSlices == 2 * kGroupLanes && kDim == kBlocks * kXGroups * kGroupLanes * 4 && kDim == 4 * kHcApplyThreads);
static_assert(kThreads / kGroupLanes >= kXGroups + kCombSums && kBlocks <= kGroupLanes);

// What add_parts of the two-launch version adds: a lane has two slices.
__device__ float sum_of_slices(float first, float second) {
  float sum = 0;
  sum += first;
  sum += second;
  return group_sum(sum);
}

__global__ void __launch_bounds__(kThreads, 1) hc_pre_cluster(Rows<const float> fn, HcApplyArgs a) {
  __shared__ float pre_parts[kSlices][kStreams + 1];  // of every slice: mixes of pre, f.f
  __shared__ float comb_parts[kSlices][kCombSums];    // used in the last block
  __shared__ float mix[kMixes + 1];
  __shared__ float squares[kHcApplyThreads / kGroupLanes];
  const uint32_t rank = cluster_rank();
  const int64_t t = blockIdx.x / kBlocks;
  const int group = group_index(), lane = group_lane(), g = group % kGroupsPerSlice, r0 = g * kHcMixesPerGroup;
  const int slice = static_cast<int>(rank) * kSlicesPerBlock + group / kGroupsPerSlice, column = slice * kHcSlice + lane;
  cluster_arrive();  // a block may be stored into once it runs
  float w[kHcMixesPerGroup][kHcPerLane];
#pragma unroll
  for (int j = 0; j < kHcMixesPerGroup; ++j) {
#pragma unroll
    for (int i = 0; i < kHcPerLane; ++i) w[j][i] = r0 + j < kMixes ? fn.row(r0 + j)[column + i * kGroupLanes] : 0.0f;
  }
  wait_previous();
  allow_next();
  float sums[kHcMixesPerGroup] = {};
#pragma unroll
  for (int i = 0; i < kHcPerLane; ++i) {
    const float f = a.h.row(t)[column + i * kGroupLanes];
#pragma unroll
    for (int j = 0; j < kHcMixesPerGroup; ++j) sums[j] = __fmaf_rn(f, r0 + j == kMixes ? f : w[j][i], sums[j]);
  }
  const int64_t d = static_cast<int64_t>(rank) * (kDim / kBlocks) + 4 * (group * kGroupLanes + lane);  // of the groups that make x
  float4 f[kStreams];
  if (group < kXGroups) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) f[i] = *reinterpret_cast<const float4*>(a.h.row(t) + i * kDim + d);
  }
  const float sum = group_sums(sums);  // of mix r0 + lane / 8
  constexpr int kLanesPerMix = kGroupLanes / kHcMixesPerGroup;
  cluster_wait();
  if (g == 0 || g == kGroupsPerSlice - 1) {
#pragma unroll
    for (int j = 0; j < kHcMixesPerGroup; ++j) {
      const float v = shuffle_from(sum, j * kLanesPerMix);
      if (lane < kBlocks && (g == 0 || j == 0)) store_in_cluster(&pre_parts[slice][g == 0 ? j : kStreams], static_cast<uint32_t>(lane), v);
    }
  }
  if (g > 0 && lane % kLanesPerMix == 0 && r0 + lane / kLanesPerMix <= kMixes) {
    store_in_cluster(&comb_parts[slice][r0 + lane / kLanesPerMix - kStreams], kBlocks - 1, sum);
  }
  cluster_arrive();
  cluster_wait();

  float4 x = {0, 0, 0, 0};
  if (group < kXGroups) {
    float m[kStreams + 1];
#pragma unroll
    for (int r = 0; r <= kStreams; ++r) m[r] = sum_of_slices(pre_parts[lane][r], pre_parts[lane + kGroupLanes][r]);
    const float root = sqrtf(m[kStreams] / static_cast<float>(kStreams * kDim) + a.rms_eps);
#pragma unroll
    for (int i = 0; i < kStreams; ++i) x = weighted(x, sigmoid(m[i] / root * a.scale[0] + a.base[i]) + a.hc_eps, f[i]);
    const float own = group_sum(square_sum(x));
    if (lane < kBlocks) store_in_cluster(&squares[static_cast<int>(rank) * kXGroups + group], static_cast<uint32_t>(lane), own);
  }
  const bool combs = rank == kBlocks - 1 && group >= kXGroups && group < kXGroups + kCombSums;
  const int i = group - kXGroups;
  const float first = combs ? comb_parts[lane][i] : 0, second = combs ? comb_parts[lane + kGroupLanes][i] : 0;
  cluster_arrive();
  if (combs) {
    const float v = sum_of_slices(first, second);
    if (lane == 0) mix[kStreams + i] = v;
    asm volatile("bar.sync 1, %0;" ::"n"(kCombSums * kGroupLanes) : "memory");  // these groups alone
    if (group == kXGroups) post_and_comb(a, t, mix);
  }
  cluster_wait();
  if (group < kXGroups) {
    const float inverse = 1.0f / sqrtf(group_sum(squares[lane]) / static_cast<float>(kDim) + a.rms_eps);
    store_normed(a, t, d, *reinterpret_cast<const ushort4*>(a.norm + d), x, inverse);
  }
}

}  // namespace

Status hc_pre_strips(OpContext& context, const HcPreArgs& a) {
  const auto aligned = [](const auto& m) { return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.row_stride % 4 == 0; };
  const bool fits = a.h.rows > 0 && a.h.rows <= kMostRows && a.streams == kStreams && a.x.cols == kDim && aligned(a.h) && aligned(a.x) &&
                    reinterpret_cast<uintptr_t>(a.norm) % 8 == 0;
  if (!fits) return hc_pre_portable(context, a);
  GpuContext& gpu = gpu_context(context);
  DSV4_RETURN_IF_ERROR(allow_large_clusters(reinterpret_cast<const void*>(hc_pre_cluster)));
  const HcApplyArgs apply = {rows_of(a.h), nullptr,   kSlices,  a.base,       a.scale,         a.norm,         kStreams, static_cast<int>(a.sinkhorn_iters),
                             kDim,         a.rms_eps, a.hc_eps, rows_of(a.x), rows_of(a.post), rows_of(a.comb)};
  return launch(gpu, "hc_pre", hc_pre_cluster, {.blocks_x = kBlocks * a.h.rows, .threads = kThreads, .cluster = kBlocks}, rows_of(a.fn), apply);
}

}  // namespace dsv4::gpu
