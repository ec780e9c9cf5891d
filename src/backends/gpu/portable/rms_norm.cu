// rms_norm: one block per row; the row is read twice, the second time from cache.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/codec.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void rms_norm_rows(Rows<const float> x, const uint16_t* weight, int64_t dim, float eps, Rows<float> out) {
  __shared__ float scratch[kGroupLanes];
  wait_previous();
  allow_next();
  const float* in = x.row(blockIdx.x);
  float* to = out.row(blockIdx.x);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) sum += in[i] * in[i];
  const float root = sqrtf(block_sum(sum, scratch) / static_cast<float>(dim) + eps);
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) to[i] = decode_bf16(weight[i]) * (in[i] / root);
}

}  // namespace

Status rms_norm_portable(OpContext& context, const RmsNormArgs& a) {
  return launch(gpu_context(context), "rms_norm", rms_norm_rows, {.blocks_x = a.x.rows, .threads = kThreads}, rows_of(a.x), a.weight, a.x.cols, a.eps, rows_of(a.out));
}

}  // namespace dsv4::gpu
