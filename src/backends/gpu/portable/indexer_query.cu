// indexer_query. indexer_heads_held: heads of 128 values, one lane group each, four neighbours per lane: the transform's first two strides stay in the
// lane, the others are shuffles. indexer_heads takes any size: one block per head in shared memory. Latency-bound: 64 heads per token.
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

constexpr int kHeldThreads = 128;
constexpr int kHeldDim = 4 * kGroupLanes;

// rope_dim a multiple of 4.
__global__ void indexer_heads_held(Rows<float> q, int64_t tokens, int heads, Rows<const float> cos_sin, int rope, RowRounding rounding) {
  wait_previous();
  allow_next();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kHeldThreads / kGroupLanes) + group_index();
  if (item >= tokens * heads) return;
  const int64_t t = item / heads;
  const int lane = group_lane();
  float* x = q.row(t) + item % heads * kHeldDim + 4 * lane;
  float v[4] = {x[0], x[1], x[2], x[3]};
  const int turn = 4 * lane - (kHeldDim - rope);
  if (turn >= 0) {
    const float* cs = cos_sin.row(t) + turn;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float a = v[i], b = v[i + 1], c = cs[i], s = cs[i + 1];
      v[i] = a * c - b * s;
      v[i + 1] = a * s + b * c;
    }
  }
  const float a0 = v[0] + v[1], a1 = v[0] - v[1], a2 = v[2] + v[3], a3 = v[2] - v[3];
  v[0] = a0 + a2;
  v[1] = a1 + a3;
  v[2] = a0 - a2;
  v[3] = a1 - a3;
#pragma unroll
  for (int stride = 1; stride < kGroupLanes; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = shuffle_xor(v[i], stride);
      v[i] = (lane & stride) == 0 ? v[i] + other : other - v[i];
    }
  }
  const float scale = 0.0883883461f;  // 128^-0.5, as the float nearest to it
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] *= scale;
    amax = fmaxf(amax, fabsf(v[i]));
  }
  if (rounding == RowRounding::kE2M1) {
    for (int m = 1; m < 8; m *= 2) amax = fmaxf(amax, shuffle_xor(amax, m));  // 8 lanes hold a group of 32
    const float s = decode_e8m0(e2m1_scale_of(amax));
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = round_e2m1_by(v[i], s);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = v[i];
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
