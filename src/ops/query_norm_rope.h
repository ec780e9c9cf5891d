// Queries, in place: each head q /= sqrt(mean(q^2) + eps) (no weight), then its last rope_dim entries are rotated in interleaved pairs:
// (a, b) -> (a cos - b sin, a sin + b cos). Source: model.md 4, 5.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct QueryNormRopeArgs {
  Matrix<float> q;  // [T, heads * head_dim], updated
  int64_t heads = 0;
  Matrix<const float> cos_sin;  // [T, rope_dim]
  float eps = 1e-6f;
};

Status check(const QueryNormRopeArgs& args);
OpCost cost(const QueryNormRopeArgs& args);
Status query_norm_rope_reference(OpContext& context, const QueryNormRopeArgs& args);

}  // namespace dsv4
