// Expert choice: s = sqrt(softplus(logits)), stable for large |x|. Hash layers: experts = tid2eid[token id]. Others: the top_k largest
// s + bias (ties: lowest expert; bias only selects), in descending order. weights = s[chosen] / sum(s[chosen]) * scaling.
// A padding row (token id < 0) gives experts -1 and weights 0. Source: model.md 8.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct MoeRouteArgs {
  Matrix<const float> logits;        // [T, E]
  const float* bias = nullptr;       // [E]; exactly one of bias and tid2eid
  const int64_t* tid2eid = nullptr;  // [vocab, top_k]
  Vector<const int32_t> token_ids;   // [T]
  float scaling = 1;
  Matrix<int32_t> experts;  // [T, top_k]
  Matrix<float> weights;    // [T, top_k]
};

Status check(const MoeRouteArgs& args);
OpCost cost(const MoeRouteArgs& args);
Status moe_route_reference(OpContext& context, const MoeRouteArgs& args);

}  // namespace dsv4
