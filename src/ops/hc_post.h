// Hyper-connection behind a sub-block, in place: h'[k] = post[k] * y + sum_j comb[j][k] * h[j] (the sum runs over the FIRST index;
// comb is not symmetric). float32, j ascending after the post term. Source: model.md 3.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct HcPostArgs {
  Matrix<const float> y;     // [T, D]
  Matrix<const float> post;  // [T, m]
  Matrix<const float> comb;  // [T, m*m]
  Matrix<float> h;           // [T, m*D], updated
};

Status check(const HcPostArgs& args);
OpCost cost(const HcPostArgs& args);
Status hc_post_reference(OpContext& context, const HcPostArgs& args);

}  // namespace dsv4
