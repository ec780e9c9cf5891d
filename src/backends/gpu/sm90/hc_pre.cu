// hc_pre of few tokens in one launch, alone or behind the hc_post that makes its streams: a cluster of 16 blocks per token keeps everything in registers
// and in each other's shared memory. A block has 256 columns of the four streams, one slice of each, and seven lane groups a slice: a group holds its
// columns of four rows of fn (loaded before the previous kernel ends), makes their parts of the mixes, and stores them where they are needed. Two
// groups of each block then make 256 columns of x; the last block makes post and comb beside that. Sums are those of portable/hc_pre.cu, to the bit.
// Weights that the second half needs are fetched before the previous kernel ends too: what lies between two uses of them is more than the L2 holds.
// Bound by latency: two cluster barriers, and the Sinkhorn iterations of one thread beside the second.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/hc_cluster.h"

namespace dsv4::gpu {
namespace {

constexpr int kBlocks = kHcBlocks, kStreams = kHcStreams, kMixes = kHcMixes, kXGroups = kHcXGroups, kSlices = kHcSlices;
constexpr int64_t kDim = kHcDim;
constexpr int kSlicesPerBlock = kSlices / kBlocks;
constexpr int kGroupsPerSlice = kMixes / kHcMixesPerGroup + 1;  // the last one makes f.f
constexpr int kThreads = kSlicesPerBlock * kGroupsPerSlice * kGroupLanes;
constexpr int kCombSums = kMixes - kStreams + 1;  // mixes of post and comb, f.f
constexpr int64_t kMostRows = 4;
static_assert(kThreads / kGroupLanes >= kXGroups + kCombSums && kBlocks <= kGroupLanes);

template <bool kPost>
__global__ void __launch_bounds__(kThreads, 1)
    hc_pre_cluster(Rows<const float> fn, const __grid_constant__ HcApplyArgs a, const __grid_constant__ PostSide before) {
  __shared__ __align__(16) float streams[kStreams][kHcSlice];  // the block's columns of f
  __shared__ float pre_parts[kSlices][kStreams + 1];           // of every slice: mixes of pre, f.f
  __shared__ float comb_parts[kSlices][kCombSums];             // used in the last block
  __shared__ float mix[kMixes + 1];
  __shared__ float squares[kHcApplyThreads / kGroupLanes];
  const uint32_t rank = cluster_rank();
  const int64_t t = blockIdx.x / kBlocks;
  const int group = group_index(), lane = group_lane(), g = group % kGroupsPerSlice, r0 = g * kHcMixesPerGroup, stream = group / kGroupsPerSlice;
  const int slice = stream * kBlocks + static_cast<int>(rank), column = slice * kHcSlice + lane;
  const int64_t first_column = static_cast<int64_t>(rank) * kHcSlice, d = first_column + 4 * (group * kGroupLanes + lane);  // d: of the groups that make x
  cluster_arrive();  // a block may be stored into once it runs
  float w[kHcMixesPerGroup][kHcPerLane];
#pragma unroll
  for (int j = 0; j < kHcMixesPerGroup; ++j) {
#pragma unroll
    for (int i = 0; i < kHcPerLane; ++i) w[j][i] = r0 + j < kMixes ? fn.row(r0 + j)[column + i * kGroupLanes] : 0.0f;
  }
  float base[kStreams] = {}, scale = 0;
  ushort4 norm = {0, 0, 0, 0};
  if (group < kXGroups) {
    norm = *reinterpret_cast<const ushort4*>(a.norm + d);
    scale = a.scale[0];
#pragma unroll
    for (int i = 0; i < kStreams; ++i) base[i] = a.base[i];
  } else if (rank == kBlocks - 1 && group == kXGroups) {
    if (lane < kMixes) prefetch_l2(a.base + lane);
    if (lane == kMixes) prefetch_l2(a.scale + 2);
  }
  if (threadIdx.x % 32 == 0 && threadIdx.x < kHcSlice) {  // written long ago, as a rule
#pragma unroll
    for (int i = 0; i < kStreams; ++i) prefetch_l2(a.h.row(t) + i * kDim + first_column + threadIdx.x);
    if (kPost && threadIdx.x == 0) {
      prefetch_l2(before.post.row(t));
      prefetch_l2(before.comb.row(t));
    }
  }
  wait_previous();
  allow_next();
  if (threadIdx.x < kHcSlice) {
    const int64_t at = first_column + threadIdx.x;
    float f[kStreams];
    if constexpr (kPost) {
      next_streams(before, t, at, f);
#pragma unroll
      for (int k = 0; k < kStreams; ++k) before.next.row(t)[k * kDim + at] = f[k];
    } else {
#pragma unroll
      for (int i = 0; i < kStreams; ++i) f[i] = a.h.row(t)[i * kDim + at];
    }
#pragma unroll
    for (int i = 0; i < kStreams; ++i) streams[i][threadIdx.x] = f[i];
  }
  __syncthreads();
  float sums[kHcMixesPerGroup] = {};
  if (r0 == kMixes) {  // f.f in the place of a row of fn
#pragma unroll
    for (int i = 0; i < kHcPerLane; ++i) w[0][i] = streams[stream][lane + i * kGroupLanes];
  }
#pragma unroll
  for (int i = 0; i < kHcPerLane; ++i) {
    const float f = streams[stream][lane + i * kGroupLanes];
#pragma unroll
    for (int j = 0; j < kHcMixesPerGroup; ++j) sums[j] = __fmaf_rn(f, w[j][i], sums[j]);
  }
  float4 f[kStreams];
  if (group < kXGroups) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) f[i] = *reinterpret_cast<const float4*>(&streams[i][4 * (group * kGroupLanes + lane)]);
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
    x = x_of(a, pre_parts, lane, scale, base, f);
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
    store_normed(a, t, d, norm, x, inverse);
  }
}

bool fits(const HcPreArgs& a) { return hc_fits_clusters(a) && a.h.rows <= kMostRows; }

template <bool kPost>
Status run(GpuContext& gpu, const char* name, const HcPreArgs& a, const PostSide& before) {
  DSV4_RETURN_IF_ERROR(allow_large_clusters(reinterpret_cast<const void*>(hc_pre_cluster<kPost>)));
  return launch(gpu, name, hc_pre_cluster<kPost>, {.blocks_x = kBlocks * a.h.rows, .threads = kThreads, .cluster = kBlocks}, rows_of(a.fn), hc_apply_args(a),
                before);
}

}  // namespace

Status hc_pre_strips(OpContext& context, const HcPreArgs& a) {
  if (!fits(a)) return hc_pre_portable(context, a);
  return run<false>(gpu_context(context), "hc_pre", a, PostSide{});
}

Status hc_post_pre_strips(OpContext& context, const HcPostPreArgs& a) {
  if (!fits(a.pre)) {
    DSV4_RETURN_IF_ERROR(hc_post_portable(context, a.post));
    return hc_pre_strips(context, a.pre);
  }
  return run<true>(gpu_context(context), "hc_post_pre", a.pre,
                   {rows_of(a.post.y), rows_of(a.post.post), rows_of(a.post.comb), rows_of(Matrix<const float>(a.post.h)), rows_of(a.post.h)});
}

}  // namespace dsv4::gpu
