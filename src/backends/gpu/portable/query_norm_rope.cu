// query_norm_rope: one lane group per (token, head). query_heads_held keeps a head in registers, four neighbours per lane and round; query_heads takes
// any size and alignment. Bound by reading and writing q.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/runtime/kernel.h"

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
  constexpr int kDim = 4 * kGroupLanes * kRounds;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / kGroupLanes) + group_index();
  if (item >= tokens * heads) return;
  const int64_t t = item / heads;
  float4* x = reinterpret_cast<float4*>(q.row(t) + item % heads * kDim) + group_lane();
  float4 v[kRounds], turn[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    v[i] = x[i * kGroupLanes];
    const int at = 4 * (i * kGroupLanes + group_lane()) - (kDim - rope);
    turn[i] = at >= 0 ? *reinterpret_cast<const float4*>(cos_sin.row(t) + at) : float4{1, 0, 1, 0};
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
  const float inverse = 1.0f / sqrtf(group_sum(sum) / static_cast<float>(kDim) + eps);
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const float4 n = {v[i].x * inverse, v[i].y * inverse, v[i].z * inverse, v[i].w * inverse}, c = turn[i];
    const bool turns = 4 * (i * kGroupLanes + group_lane()) >= kDim - rope;
    x[i * kGroupLanes] = turns ? float4{n.x * c.x - n.y * c.y, n.x * c.y + n.y * c.x, n.z * c.z - n.w * c.w, n.z * c.w + n.w * c.z} : n;
  }
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
