// rope_table: one thread per (token, pair). cosf and sinf are the accurate ones: angles reach a million radians.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/runtime/kernel.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 64;

__global__ void rope_rows(const int32_t* positions, int32_t offset, const float* freqs, int64_t pairs, int64_t tokens, Rows<float> out) {
  wait_previous();
  allow_next();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= tokens * pairs) return;
  const int64_t t = i / pairs, pair = i % pairs;
  const int32_t p = positions[t] + offset;
  const float angle = p < 0 || positions[t] < 0 ? 0.0f : __fmul_rn(static_cast<float>(p), freqs[pair]);
  out.row(t)[2 * pair] = cosf(angle);
  out.row(t)[2 * pair + 1] = sinf(angle);
}

}  // namespace

Status rope_table_portable(OpContext& context, const RopeTableArgs& a) {
  const int64_t tokens = a.out.rows, pairs = a.freqs.size;
  return launch(gpu_context(context), "rope_table", rope_rows, {.blocks_x = ceil_div(tokens * pairs, kThreads), .threads = kThreads}, a.positions.data,
                a.offset, a.freqs.data, pairs, tokens, rows_of(a.out));
}

}  // namespace dsv4::gpu
