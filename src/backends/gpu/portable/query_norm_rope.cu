// query_norm_rope: one lane group per (token, head). query_heads_held keeps a head in registers, four neighbours per lane and round; query_heads takes
// any size and alignment. Bound by reading and writing q.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/query_heads.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 128;

__global__ void query_heads(Rows<float> q, int64_t tokens, int heads, int dim, Rows<const float> cos_sin, int rope, float eps) {
  wait_previous();
  allow_next();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / kGroupLanes) + group_index();
  if (item >= tokens * heads) return;
  const int64_t t = item / heads;
  float* x = q.row(t) + item % heads * dim;
  const int lane = group_lane();
  float sum = 0;
  for (int i = lane; i < dim; i += kGroupLanes) sum += x[i] * x[i];
  const float root = sqrtf(group_sum(sum) / static_cast<float>(dim) + eps);
  const int nope = dim - rope;
  for (int i = lane; i < nope; i += kGroupLanes) x[i] /= root;
  for (int i = 2 * lane; i < rope; i += 2 * kGroupLanes) {
    const float a = x[nope + i] / root, b = x[nope + i + 1] / root, c = cos_sin.row(t)[i], s = cos_sin.row(t)[i + 1];
    x[nope + i] = a * c - b * s;
    x[nope + i + 1] = a * s + b * c;
  }
}

// head_dim = 128 * kRounds, rope_dim a multiple of 4, 16-byte aligned rows.
template <int kRounds>
__global__ void query_heads_held(Rows<float> q, int64_t tokens, int heads, Rows<const float> cos_sin, int rope, float eps) {
  wait_previous();
  allow_next();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / kGroupLanes) + group_index();
  if (item >= tokens * heads) return;
  const int64_t t = item / heads;
  norm_and_rotate_head<kRounds>(q.row(t) + item % heads * (4 * kGroupLanes * kRounds), cos_sin.row(t), rope, eps);
}

}  // namespace

Status query_norm_rope_portable(OpContext& context, const QueryNormRopeArgs& a) {
  const int heads = static_cast<int>(a.heads), dim = static_cast<int>(a.q.cols / a.heads);
  const auto aligned = [](const auto& m) { return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.row_stride % 4 == 0; };
  if (dim == 512 && a.cos_sin.cols % 4 == 0 && aligned(a.q) && aligned(a.cos_sin)) {
    return launch(gpu_context(context), "query_norm_rope", query_heads_held<4>,
                  {.blocks_x = ceil_div(a.q.rows * heads, kThreads / kGroupLanes), .threads = kThreads}, rows_of(a.q), a.q.rows, heads, rows_of(a.cos_sin),
                  static_cast<int>(a.cos_sin.cols), a.eps);
  }
  return launch(gpu_context(context), "query_norm_rope", query_heads, {.blocks_x = ceil_div(a.q.rows * heads, kThreads / kGroupLanes), .threads = kThreads},
                rows_of(a.q), a.q.rows, heads, dim, rows_of(a.cos_sin), static_cast<int>(a.cos_sin.cols), a.eps);
}

}  // namespace dsv4::gpu
