// sparse_attention on any card: one block per (token, head). Lane groups take keys for q.k, scores lie in shared memory; then every thread owns output
// dimensions and walks the keys in order. Each head decodes its keys again: correct everywhere, not quick.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/paged.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / kGroupLanes;
constexpr int kMaxSharedBytes = 200 * 1024;

struct AttentionArgs {
  Rows<const float> q;
  int dim;
  SequenceRows rows;
  PagedRows window;
  BlockTable window_table;
  int32_t ring_rows;
  int32_t window_tokens;
  int32_t ratio;
  PagedRows compressed;
  BlockTable compressed_table;
  int64_t max_compressed;
  Rows<const int32_t> topk;
  int topk_cols;
  const float* sink;
  float scale;
  Rows<const float> cos_sin;
  int rope;
  Rows<float> o;
};

// Key i of the seen ones.
__device__ RowPlace seen_key(const AttentionArgs& a, int64_t t, int64_t slot, int32_t first, int in_window, int i) {
  if (i < in_window) return row_place(a.window, a.window_table, slot, (first + i) % a.ring_rows);
  const int64_t j = a.ratio == 4 ? a.topk.row(t)[i - in_window] : i - in_window;
  return row_place(a.compressed, a.compressed_table, slot, j);
}

__global__ void __launch_bounds__(kThreads) attend(AttentionArgs a) {
  extern __shared__ float shared[];  // o [dim], then scores
  __shared__ float scratch[kGroupLanes];
  __shared__ int listed;
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.y, h = blockIdx.x, slot = a.rows.slots[t];
  const int tid = static_cast<int>(threadIdx.x);
  const int32_t p = a.rows.positions[t];
  float* out = a.o.row(t) + h * a.dim;
  if (p < 0) {
    for (int d = tid; d < a.dim; d += kThreads) out[d] = 0;
    return;
  }
  float* o = shared;
  float* score = shared + a.dim;
  const int32_t first = p - a.window_tokens + 1 > 0 ? p - a.window_tokens + 1 : 0;
  const int in_window = p - first + 1;
  int compressed = 0;
  if (a.ratio == 128) {
    compressed = (p + 1) / 128;
    if (compressed > a.max_compressed) compressed = static_cast<int>(a.max_compressed);
  } else if (a.ratio == 4) {
    if (tid == 0) listed = a.topk_cols;
    __syncthreads();
    for (int i = tid; i < a.topk_cols; i += kThreads) {
      if (a.topk.row(t)[i] < 0) atomicMin(&listed, i);
    }
    __syncthreads();
    compressed = listed;
  }
  const int keys = in_window + compressed;
  const float* q = a.q.row(t) + h * a.dim;
  for (int i = group_index(); i < keys; i += kGroups) {
    const RowPlace place = seen_key(a, t, slot, first, in_window, i);
    const RowFormat format = i < in_window ? a.window.format : a.compressed.format;
    float sum = 0;
    for (int d = group_lane(); d < a.dim; d += kGroupLanes) sum += q[d] * row_value(format, place, d);
    sum = group_sum(sum);
    if (group_lane() == 0) score[i] = a.scale * sum;
  }
  __syncthreads();
  float top = a.sink[h];
  for (int i = tid; i < keys; i += kThreads) top = fmaxf(top, score[i]);
  top = block_max(top, scratch);
  float sum = 0;
  for (int i = tid; i < keys; i += kThreads) sum += score[i] = expf(score[i] - top);
  sum = block_sum(sum, scratch) + expf(a.sink[h] - top);
  for (int d = tid; d < a.dim; d += kThreads) {
    float v = 0;
    for (int i = 0; i < keys; ++i) {
      const RowFormat format = i < in_window ? a.window.format : a.compressed.format;
      v += score[i] * row_value(format, seen_key(a, t, slot, first, in_window, i), d);
    }
    o[d] = v / sum;
  }
  __syncthreads();
  const int nope = a.dim - a.rope;
  for (int d = tid; d < nope; d += kThreads) out[d] = o[d];
  for (int d = 2 * tid; d < a.rope; d += 2 * kThreads) {
    const float x = o[nope + d], y = o[nope + d + 1], c = a.cos_sin.row(t)[d], s = -a.cos_sin.row(t)[d + 1];
    out[nope + d] = x * c - y * s;
    out[nope + d + 1] = x * s + y * c;
  }
}

}  // namespace

Status sparse_attention_portable(OpContext& context, const SparseAttentionArgs& a) {
  const int64_t compressed = a.ratio == 128 ? a.max_compressed_rows : a.ratio == 4 ? a.topk.cols : 0;
  const int64_t shared = 4 * (a.window.row_dim + a.window_tokens + compressed);
  if (shared > kMaxSharedBytes) {
    return unsupported("sparse_attention: " + std::to_string(a.window_tokens + compressed) + " keys of one token do not fit the portable kernel's " +
                       std::to_string(kMaxSharedBytes) + " bytes of shared memory");
  }
  const AttentionArgs args = {rows_of(a.q),
                              a.window.row_dim,
                              a.rows,
                              a.window,
                              a.window_table,
                              a.ring_rows,
                              a.window_tokens,
                              a.ratio,
                              a.compressed,
                              a.compressed_table,
                              a.max_compressed_rows,
                              rows_of(a.topk),
                              static_cast<int>(a.topk.cols),
                              a.sink,
                              a.scale,
                              rows_of(a.cos_sin),
                              static_cast<int>(a.cos_sin.cols),
                              rows_of(a.o)};
  return launch(gpu_context(context), "sparse_attention", attend,
                {.blocks_x = a.heads, .blocks_y = a.q.rows, .threads = kThreads, .shared_bytes = static_cast<int>(shared)}, args);
}

}  // namespace dsv4::gpu
