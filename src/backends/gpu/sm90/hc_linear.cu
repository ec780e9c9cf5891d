// hc_post and hc_pre of one row, then the products that read x. What those wait for is x alone; post and comb are wanted a sub-block later.
//
// hc_spread  six clusters of 16 blocks, four of the 24 mixes each, so that a multiprocessor waits for 16 KB of fn; where registers are left beside the
//            previous kernel they come while it runs. A block has 256 columns of the four streams, one slice of each, and a lane group for each slice and
//            two of its mixes. Every cluster makes the new streams for itself, out of place. The first one writes them, and x; the others leave the sums of
//            the mixes of post and comb.
// products   a block more than their strips want makes post and comb of those sums (row_product.cu), or, behind products without such a block,
//            finish_comb does.
// Sums are those of portable/hc_pre.cu, to the bit. Bound by latency: one cluster barrier with its stores, the gates, another barrier. H200: 8.7 us with
// the router's product, 14.3 with the products before attention (28 MB, 6 us of reading).
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/hc_cluster.h"
#include "backends/gpu/sm90/products.h"

namespace dsv4::gpu {
namespace {

constexpr int kSlicesHere = kHcSlices / kHcBlocks;  // of a block
constexpr int kClusterMixes = kHcMixesPerGroup, kGroupMixes = kClusterMixes / 2;
constexpr int kClusters = kHcMixes / kClusterMixes;
constexpr int kThreads = 2 * kSlicesHere * kGroupLanes;
static_assert(kThreads == kHcSlice);    // a thread per column, two groups per slice
constexpr int kBlocksPerProcessor = 5;  // 48 registers: as many as two blocks of a row product leave

__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    hc_spread(Rows<const float> fn, const __grid_constant__ HcApplyArgs a, const __grid_constant__ PostSide before, float* mixes) {
  __shared__ __align__(16) float streams[kHcStreams][kHcSlice];
  __shared__ float parts[kHcSlices][kHcStreams + 1];  // first cluster: mixes of pre and f.f, in every block; others: four mixes, in their first block
  __shared__ float squares[kHcApplyThreads / kGroupLanes];
  __shared__ float gates[kHcStreams + 1];  // base and scale of pre
  const uint32_t rank = cluster_rank();
  const int cluster = static_cast<int>(blockIdx.x) / kHcBlocks, group = group_index(), lane = group_lane();
  const int stream = group % kSlicesHere, m0 = group / kSlicesHere * kGroupMixes, r0 = cluster * kClusterMixes;  // the group's mixes: r0 + m0 ..
  const int slice = stream * kHcBlocks + static_cast<int>(rank);
  const int64_t first_column = static_cast<int64_t>(rank) * kHcSlice, at = first_column + threadIdx.x;
  const int64_t d = first_column + 4 * (group * kGroupLanes + lane);  // of the groups that make x
  const bool makes_x = cluster == 0 && group < kHcXGroups;
  cluster_arrive();  // a block may be stored into once it runs
  float w[kGroupMixes][kHcPerLane];
#pragma unroll
  for (int j = 0; j < kGroupMixes; ++j) {
#pragma unroll
    for (int i = 0; i < kHcPerLane; ++i) w[j][i] = fn.row(r0 + m0 + j)[slice * kHcSlice + lane + i * kGroupLanes];
  }
  ushort4 norm = {0, 0, 0, 0};
  if (makes_x) norm = *reinterpret_cast<const ushort4*>(a.norm + d);
  if (threadIdx.x <= kHcStreams) gates[threadIdx.x] = threadIdx.x < kHcStreams ? a.base[threadIdx.x] : a.scale[0];
  if (threadIdx.x % 32 == 0) {  // written long ago, as a rule
#pragma unroll
    for (int i = 0; i < kHcStreams; ++i) prefetch_l2(before.h.row(0) + i * kHcDim + at);
    if (threadIdx.x == 0) {
      prefetch_l2(before.post.row(0));
      prefetch_l2(before.comb.row(0));
    }
  }
  wait_previous();
  allow_next();
  {
    float next[kHcStreams];
    next_streams(before, 0, at, next);
#pragma unroll
    for (int i = 0; i < kHcStreams; ++i) {
      if (cluster == 0) before.next.row(0)[i * kHcDim + at] = next[i];
      streams[i][threadIdx.x] = next[i];
    }
  }
  __syncthreads();
  float sums[4] = {};  // mixes m0, m0 + 1, f.f
#pragma unroll
  for (int i = 0; i < kHcPerLane; ++i) {
    const float f = streams[stream][lane + i * kGroupLanes];
#pragma unroll
    for (int j = 0; j < kGroupMixes; ++j) sums[j] = __fmaf_rn(f, w[j][i], sums[j]);
    sums[kGroupMixes] = __fmaf_rn(f, f, sums[kGroupMixes]);
  }
  const float sum = group_sums(sums);  // of sums[lane / 8]
  cluster_wait();
  if (cluster == 0) {
#pragma unroll
    for (int j = 0; j <= kGroupMixes; ++j) {
      const float v = shuffle_from(sum, j * (kGroupLanes / 4));
      if (lane < kHcBlocks && (j < kGroupMixes || m0 == 0))
        store_in_cluster(&parts[slice][j < kGroupMixes ? m0 + j : kHcStreams], static_cast<uint32_t>(lane), v);
    }
  } else if (lane % (kGroupLanes / 4) == 0 && lane / (kGroupLanes / 4) < kGroupMixes) {
    store_in_cluster(&parts[slice][m0 + lane / (kGroupLanes / 4)], 0, sum);
  }
  cluster_arrive();
  cluster_wait();
  if (cluster != 0) {
    if (rank == 0 && group < kClusterMixes) {
      const float v = sum_of_slices(parts[lane][group], parts[lane + kGroupLanes][group]);
      if (lane == 0) mixes[r0 + group] = v;
    }
    return;
  }

  float4 x = {0, 0, 0, 0};
  if (makes_x) {
    float4 f[kHcStreams];
#pragma unroll
    for (int i = 0; i < kHcStreams; ++i) f[i] = *reinterpret_cast<const float4*>(&streams[i][4 * (group * kGroupLanes + lane)]);
    x = x_of(a, parts, lane, gates[kHcStreams], gates, f);
    const float own = group_sum(square_sum(x));
    if (lane < kHcBlocks) store_in_cluster(&squares[static_cast<int>(rank) * kHcXGroups + group], static_cast<uint32_t>(lane), own);
  } else if (rank == 0 && group == kHcXGroups) {
    const float v = sum_of_slices(parts[lane][kHcStreams], parts[lane + kGroupLanes][kHcStreams]);
    if (lane == 0) mixes[kHcMixes] = v;
  }
  cluster_arrive();
  cluster_wait();
  if (makes_x) {
    const float inverse = 1.0f / sqrtf(group_sum(squares[lane]) / static_cast<float>(kHcDim) + a.rms_eps);
    store_normed(a, 0, d, norm, x, inverse);
  }
}

__global__ void __launch_bounds__(kGroupLanes) finish_comb(const __grid_constant__ CombWork work) {
  wait_previous();
  allow_next();
  make_comb(work);
}

}  // namespace

Status hc_linear_strips(OpContext& context, const HcLinearArgs& a) {
  GpuContext& gpu = gpu_context(context);
  const HcPostArgs& post = a.join.post;
  const HcPreArgs& pre = a.join.pre;
  if (pre.h.rows != 1 || !hc_fits_clusters(pre)) {
    const Matrix<float> next(const_cast<float*>(pre.h.data), pre.h.rows, pre.h.cols, pre.h.row_stride);
    for (int64_t t = 0; t < next.rows; ++t) DSV4_RETURN_IF_ERROR(copy_async(next.row(t), post.h.row(t), 4 * next.cols, CopyKind::kDeviceToDevice, gpu.stream));
    DSV4_RETURN_IF_ERROR(hc_post_pre_strips(context, {{post.y, post.post, post.comb, next}, pre}));
    return linear_strips(context, a.linear);
  }
  const HcApplyArgs apply = hc_apply_args(pre);
  const PostSide before = {
      rows_of(post.y), rows_of(post.post), rows_of(post.comb), rows_of(Matrix<const float>(post.h)), {const_cast<float*>(pre.h.data), pre.h.row_stride}};
  DSV4_RETURN_IF_ERROR(allow_large_clusters(reinterpret_cast<const void*>(hc_spread)));
  DSV4_RETURN_IF_ERROR(launch(gpu, "hc_linear", hc_spread, {.blocks_x = kClusters * kHcBlocks, .threads = kThreads, .cluster = kHcBlocks}, rows_of(pre.fn),
                              apply, before, gpu.mixes));
  const CombWork work = {gpu.mixes, apply};
  gpu.beside = &work;
  const Status products = linear_strips(context, a.linear);
  const bool left = gpu.beside != nullptr;
  gpu.beside = nullptr;
  DSV4_RETURN_IF_ERROR(products);
  return left ? launch(gpu, "hc_linear (comb)", finish_comb, {.threads = kGroupLanes}, work) : ok_status();
}

}  // namespace dsv4::gpu
