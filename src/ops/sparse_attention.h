// Sparse MLA attention of one layer. For row t at position p, seen keys are, in this order: window rows of positions
// max(0, p - window + 1) .. p; then compressed rows: none (ratio 0), all j < (p + 1) / 128 (ratio 128), or topk[t] up to its first -1
// (ratio 4). A key row is also the value row.
//   s_k = scale * (q . k); prob = softmax over seen keys and one sink logit per head whose value is zero; o = sum prob_k * k;
//   then o's last rope_dim entries are rotated by the NEGATIVE angle of the query's position.
// float32 throughout. Source: model.md 5.
#pragma once

#include "cache/paged_rows.h"
#include "ops/op.h"

namespace dsv4 {

struct SparseAttentionArgs {
  Matrix<const float> q;  // [T, heads * head_dim]
  int64_t heads = 0;
  SequenceRows rows;
  PagedRows window;
  BlockTable window_table;
  int32_t ring_rows = 0;
  int32_t window_tokens = 0;
  int32_t ratio = 0;                // 0, 4, 128
  PagedRows compressed;             // ratio != 0
  BlockTable compressed_table;      // ratio != 0
  int64_t max_compressed_rows = 0;  // bound of all lengths, for scratch and grids
  Matrix<const int32_t> topk;       // [T, index_topk], ratio 4 only
  const float* sink = nullptr;      // [heads]
  float scale = 1;
  Matrix<const float> cos_sin;  // [T, rope_dim]
  Matrix<float> o;              // [T, heads * head_dim]
};

Status check(const SparseAttentionArgs& args);
OpCost cost(const SparseAttentionArgs& args);
Status sparse_attention_reference(OpContext& context, const SparseAttentionArgs& args);

}  // namespace dsv4
