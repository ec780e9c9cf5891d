// The indexer's choice: score(p, j) = sum_h (weight_scale * w[h]) * relu(q_h . k_j), h ascending, for compressed rows j < (p + 1) / ratio;
// the topk best (ties: lowest j) in ASCENDING order of j, then -1 up to topk. Fewer rows than topk: all of them. Source: model.md 7.
#pragma once

#include "cache/paged_rows.h"
#include "ops/op.h"

namespace dsv4 {

struct IndexerTopkArgs {
  Matrix<const float> q;   // [T, heads * head_dim]
  Matrix<const float> w;   // [T, heads]: weights_proj x, unscaled
  float weight_scale = 1;  // head_dim^-0.5 * heads^-0.5
  int64_t heads = 0;
  SequenceRows rows;
  int32_t ratio = 4;
  PagedRows keys;
  BlockTable table;
  int64_t max_rows = 0;     // compressed rows a slot can hold: bound of all lengths, for scratch and grids
  Matrix<int32_t> indices;  // [T, topk]
};

Status check(const IndexerTopkArgs& args);
OpCost cost(const IndexerTopkArgs& args);
Status indexer_topk_reference(OpContext& context, const IndexerTopkArgs& args);

}  // namespace dsv4
