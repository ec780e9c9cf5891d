// Block-diagonal product (wo_a): the G groups of x have their own matrices, stacked: y[t][g*R + r] = sum_i w[g*R + r][i] x[t][g*Kg + i].
// The activation is never rounded here, in either arithmetic. w's scale grid is that of the stacked matrix. Source: model.md 5, 9.
#pragma once

#include "ops/op.h"
#include "tensor/weight.h"

namespace dsv4 {

struct GroupedLinearArgs {
  Matrix<const float> x;  // [T, G*Kg]
  WeightView weight;      // [G*R, Kg]
  int64_t groups = 1;     // G
  Matrix<float> y;        // [T, G*R]
};

Status check(const GroupedLinearArgs& args);
OpCost cost(const GroupedLinearArgs& args);
Status grouped_linear_reference(OpContext& context, const GroupedLinearArgs& args);

}  // namespace dsv4
