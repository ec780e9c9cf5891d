// rms_norm: one block per row, which it keeps in registers. Latency-bound.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/codec.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kHeld = 8;  // values of a row a thread keeps in registers; longer rows are read again

__global__ void rms_norm_rows(Rows<const float> x, const uint16_t* weight, int64_t dim, float eps, Rows<float> out) {
  __shared__ float scratch[kGroupLanes];
  float scale[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t at = threadIdx.x + i * kThreads;
    scale[i] = at < dim ? decode_bf16(weight[at]) : 0.0f;
  }
  wait_previous();
  allow_next();
  const float* in = x.row(blockIdx.x);
  float* to = out.row(blockIdx.x);
  float held[kHeld], sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t at = threadIdx.x + i * kThreads;
    held[i] = at < dim ? in[at] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) sum += held[i] * held[i];
  for (int64_t i = threadIdx.x + kHeld * kThreads; i < dim; i += kThreads) sum += in[i] * in[i];
  const float root = sqrtf(block_sum(sum, scratch) / static_cast<float>(dim) + eps);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t at = threadIdx.x + i * kThreads;
    if (at < dim) to[at] = scale[i] * (held[i] / root);
  }
  for (int64_t i = threadIdx.x + kHeld * kThreads; i < dim; i += kThreads) to[i] = decode_bf16(weight[i]) * (in[i] / root);
}

}  // namespace

Status rms_norm_portable(OpContext& context, const RmsNormArgs& a) {
  return launch(gpu_context(context), "rms_norm", rms_norm_rows, {.blocks_x = a.x.rows, .threads = kThreads}, rows_of(a.x), a.weight, a.x.cols, a.eps,
                rows_of(a.out));
}

}  // namespace dsv4::gpu
