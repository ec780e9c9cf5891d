// rms_norm: one block per row, which it keeps in registers. Latency-bound.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/row_ops.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = kRmsThreads, kHeld = kRmsHeld;  // values of a row a thread keeps in registers; longer rows are read again

__global__ void rms_norm_rows(Rows<const float> x, const uint16_t* weight, int64_t dim, float eps, Rows<float> out) {
  __shared__ float scratch[kGroupLanes];
  uint16_t scale[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t at = threadIdx.x + i * kThreads;
    scale[i] = at < dim ? weight[at] : 0;
  }
  wait_previous();
  allow_next();
  const float* in = x.row(blockIdx.x);
  float* to = out.row(blockIdx.x);
  float held[kHeld], rest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t at = threadIdx.x + i * kThreads;
    held[i] = at < dim ? in[at] : 0.0f;
  }
  for (int64_t i = threadIdx.x + kHeld * kThreads; i < dim; i += kThreads) rest = __fmaf_rn(in[i], in[i], rest);
  const float root = rms_root(held, rest, dim, eps, scratch);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t at = threadIdx.x + i * kThreads;
    if (at < dim) to[at] = rms_value(held[i], root, scale[i]);
  }
  for (int64_t i = threadIdx.x + kHeld * kThreads; i < dim; i += kThreads) to[i] = rms_value(in[i], root, weight[i]);
}

}  // namespace

Status rms_norm_portable(OpContext& context, const RmsNormArgs& a) {
  return launch(gpu_context(context), "rms_norm", rms_norm_rows, {.blocks_x = a.x.rows, .threads = kThreads}, rows_of(a.x), a.weight, a.x.cols, a.eps,
                rows_of(a.out));
}

}  // namespace dsv4::gpu
