// out = silu(min(gate, limit)) * clamp(up, -limit, limit). float32. out may be gate or up. Source: model.md 8.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct SwigluArgs {
  Matrix<const float> gate;  // [T, F]
  Matrix<const float> up;    // [T, F]
  float limit = 0;
  Matrix<float> out;  // [T, F]
};

Status check(const SwigluArgs& args);
OpCost cost(const SwigluArgs& args);
Status swiglu_reference(OpContext& context, const SwigluArgs& args);

}  // namespace dsv4
