// indexer_query. indexer_heads_held: heads of 128 values, one lane group each (query_heads.h). indexer_heads takes any size: one block per head in shared
// memory. Latency-bound: 64 heads per token.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/paged.h"
#include "backends/gpu/portable/query_heads.h"
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

constexpr int kHeldThreads = 128;
constexpr int kHeldDim = 4 * kGroupLanes;

// rope_dim a multiple of 4.
__global__ void indexer_heads_held(Rows<float> q, int64_t tokens, int heads, Rows<const float> cos_sin, int rope, RowRounding rounding) {
  wait_previous();
  allow_next();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kHeldThreads / kGroupLanes) + group_index();
  if (item >= tokens * heads) return;
  const int64_t t = item / heads;
  float* x = q.row(t) + item % heads * kHeldDim + 4 * group_lane();
  const float4 v = index_head({x[0], x[1], x[2], x[3]}, index_turn(cos_sin.row(t), rope), rounding == RowRounding::kE2M1);
  x[0] = v.x;
  x[1] = v.y;
  x[2] = v.z;
  x[3] = v.w;
}

}  // namespace

Status indexer_query_portable(OpContext& context, const IndexerQueryArgs& a) {
  const int dim = static_cast<int>(a.q.cols / a.heads);
  const RowRounding rounding = a.round_e2m1 ? RowRounding::kE2M1 : RowRounding::kNone;
  if (dim == kHeldDim && a.cos_sin.cols % 4 == 0) {
    return launch(gpu_context(context), "indexer_query", indexer_heads_held,
                  {.blocks_x = ceil_div(a.q.rows * a.heads, kHeldThreads / kGroupLanes), .threads = kHeldThreads}, rows_of(a.q), a.q.rows,
                  static_cast<int>(a.heads), rows_of(a.cos_sin), static_cast<int>(a.cos_sin.cols), rounding);
  }
  return launch(gpu_context(context), "indexer_query", indexer_heads, {.blocks_x = a.heads, .blocks_y = a.q.rows, .threads = kThreads, .shared_bytes = 4 * dim},
                rows_of(a.q), dim, rows_of(a.cos_sin), static_cast<int>(a.cos_sin.cols), rounding);
}

}  // namespace dsv4::gpu
