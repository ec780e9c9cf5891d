// hc_head: one block per output row. Runs once per step, on the few rows that need logits.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/codec.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 1024;
constexpr int kMaxStreams = 8;

struct HeadArgs {
  Rows<const float> h;
  const int32_t* rows;
  Rows<const float> fn;
  const float* base;
  const float* scale;
  const uint16_t* norm;
  int streams;
  int64_t dim;
  float rms_eps;
  float hc_eps;
  Rows<float> x;
};

__global__ void __launch_bounds__(kThreads) hc_head_rows(HeadArgs a) {
  __shared__ float scratch[kGroupLanes];
  wait_previous();
  allow_next();
  const int64_t r = blockIdx.x;
  float* x = a.x.row(r);
  const int32_t source = a.rows[r];
  if (source < 0) {
    for (int64_t d = threadIdx.x; d < a.dim; d += kThreads) x[d] = 0;
    return;
  }
  const float* f = a.h.row(source);
  float sums[kMaxStreams + 1] = {};
  for (int64_t i = threadIdx.x; i < a.streams * a.dim; i += kThreads) {
    const float v = f[i];
#pragma unroll
    for (int k = 0; k < kMaxStreams; ++k) {
      if (k < a.streams) sums[k] += v * a.fn.row(k)[i];
    }
    sums[kMaxStreams] += v * v;
  }
  const float root = sqrtf(block_sum(sums[kMaxStreams], scratch) / static_cast<float>(a.streams * a.dim) + a.rms_eps);
  float pre[kMaxStreams] = {};
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k) {
    if (k < a.streams) pre[k] = sigmoid(block_sum(sums[k], scratch) / root * a.scale[0] + a.base[k]) + a.hc_eps;
  }
  float sum = 0;
  for (int64_t d = threadIdx.x; d < a.dim; d += kThreads) {
    float v = 0;
#pragma unroll
    for (int k = 0; k < kMaxStreams; ++k) {
      if (k < a.streams) v += pre[k] * f[k * a.dim + d];
    }
    x[d] = v;
    sum += v * v;
  }
  const float x_root = sqrtf(block_sum(sum, scratch) / static_cast<float>(a.dim) + a.rms_eps);
  for (int64_t d = threadIdx.x; d < a.dim; d += kThreads) x[d] = decode_bf16(a.norm[d]) * (x[d] / x_root);
}

}  // namespace

Status hc_head_portable(OpContext& context, const HcHeadArgs& a) {
  const HeadArgs args = {rows_of(a.h), a.rows.data, rows_of(a.fn), a.base,      a.scale, a.norm, static_cast<int>(a.fn.rows),
                         a.x.cols,     a.rms_eps,   a.hc_eps,      rows_of(a.x)};
  return launch(gpu_context(context), "hc_head", hc_head_rows, {.blocks_x = a.x.rows, .threads = kThreads}, args);
}

}  // namespace dsv4::gpu
