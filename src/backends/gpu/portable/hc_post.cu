// hc_post: one thread per (token, d): reads the streams' m values and y, writes m values. Bound by reading and writing h once.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/hc_pre.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxStreams = 8;

template <int kStreams>
__global__ void hc_post_rows(Rows<const float> y, Rows<const float> post, Rows<const float> comb, int64_t dim, Rows<float> h) {
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.y, d = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (d >= dim) return;
  float old[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) old[j] = h.row(t)[j * dim + d];
  const float v = y.row(t)[d];
#pragma unroll
  for (int k = 0; k < kStreams; ++k) h.row(t)[k * dim + d] = mixed_stream<kStreams>(post.row(t)[k], v, comb.row(t) + k, old);
}

}  // namespace

Status hc_post_portable(OpContext& context, const HcPostArgs& a) {
  using Kernel = void (*)(Rows<const float>, Rows<const float>, Rows<const float>, int64_t, Rows<float>);
  static constexpr Kernel kKernels[kMaxStreams] = {hc_post_rows<1>, hc_post_rows<2>, hc_post_rows<3>, hc_post_rows<4>,
                                                   hc_post_rows<5>, hc_post_rows<6>, hc_post_rows<7>, hc_post_rows<8>};
  return launch(gpu_context(context), "hc_post", kKernels[a.post.cols - 1],
                {.blocks_x = ceil_div(a.y.cols, kThreads), .blocks_y = a.y.rows, .threads = kThreads}, rows_of(a.y), rows_of(a.post), rows_of(a.comb), a.y.cols,
                rows_of(a.h));
}

}  // namespace dsv4::gpu
