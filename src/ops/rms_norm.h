// out = weight * x / sqrt(mean(x^2) + eps), float32, per row. out may be x. Source: model.md 2.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct RmsNormArgs {
  Matrix<const float> x;             // [T, K]
  const uint16_t* weight = nullptr;  // [K] BF16
  float eps = 1e-6f;
  Matrix<float> out;  // [T, K]
};

Status check(const RmsNormArgs& args);
OpCost cost(const RmsNormArgs& args);
Status rms_norm_reference(OpContext& context, const RmsNormArgs& args);

}  // namespace dsv4
