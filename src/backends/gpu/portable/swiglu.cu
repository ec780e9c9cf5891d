// swiglu: elementwise, one thread per value.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/codec.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void swiglu_rows(Rows<const float> gate, Rows<const float> up, int64_t cols, float limit, Rows<float> out) {
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < cols) out.row(t)[i] = swiglu_value(gate.row(t)[i], up.row(t)[i], limit);
}

}  // namespace

Status swiglu_portable(OpContext& context, const SwigluArgs& a) {
  return launch(gpu_context(context), "swiglu", swiglu_rows, {.blocks_x = ceil_div(a.gate.cols, kThreads), .blocks_y = a.gate.rows, .threads = kThreads},
                rows_of(a.gate), rows_of(a.up), a.gate.cols, a.limit, rows_of(a.out));
}

}  // namespace dsv4::gpu
