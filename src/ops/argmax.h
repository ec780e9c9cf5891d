// ids[r] = index of the largest logit of row r, the lowest on ties; -1 when a row has a NaN. Source: greedy decoding.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct ArgmaxArgs {
  Matrix<const float> logits;  // [R, vocab]
  Vector<int32_t> ids;         // [R]
};

Status check(const ArgmaxArgs& args);
OpCost cost(const ArgmaxArgs& args);
Status argmax_reference(OpContext& context, const ArgmaxArgs& args);

}  // namespace dsv4
