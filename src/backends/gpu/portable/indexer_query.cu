// indexer_query: one block per (token, head); the head lives in shared memory. Latency-bound: 64 heads x 128 values per token.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/paged.h"
#include "backends/gpu/portable/row_ops.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 64;

__global__ void indexer_heads(Rows<float> q, int dim, Rows<const float> cos_sin, int rope, RowRounding rounding) {
  extern __shared__ float row[];
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.y;
  float* x = q.row(t) + static_cast<int64_t>(blockIdx.x) * dim;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) row[i] = x[i];
  __syncthreads();
  rotate_row(row + dim - rope, cos_sin.row(t), rope);
  hadamard_row(row, dim);
  round_row(row, dim, 0, rounding);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) x[i] = row[i];
}

}  // namespace

Status indexer_query_portable(OpContext& context, const IndexerQueryArgs& a) {
  const int dim = static_cast<int>(a.q.cols / a.heads);
  return launch(gpu_context(context), "indexer_query", indexer_heads, {.blocks_x = a.heads, .blocks_y = a.q.rows, .threads = kThreads, .shared_bytes = 4 * dim}, rows_of(a.q), dim,
                rows_of(a.cos_sin), static_cast<int>(a.cos_sin.cols), a.round_e2m1 ? RowRounding::kE2M1 : RowRounding::kNone);
}

}  // namespace dsv4::gpu
