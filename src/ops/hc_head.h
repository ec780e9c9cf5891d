// Collapses the streams of chosen rows at the end of the model: mixes = (fn f) * r as in hc_pre; pre = sigmoid(mixes * scale + base)
// + hc_eps; x = RMSNorm(sum_i pre[i] h[i], norm). Output row i is row `rows[i]` of h. A row index < 0 gives zeros. Source: model.md 3.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct HcHeadArgs {
  Matrix<const float> h;           // [T, m*D]
  Vector<const int32_t> rows;      // [R], below T
  Matrix<const float> fn;          // [m, m*D]
  const float* base = nullptr;     // [m]
  const float* scale = nullptr;    // [1]
  const uint16_t* norm = nullptr;  // [D] BF16
  float rms_eps = 1e-6f;
  float hc_eps = 1e-6f;
  Matrix<float> x;  // [R, D]
};

Status check(const HcHeadArgs& args);
OpCost cost(const HcHeadArgs& args);
Status hc_head_reference(OpContext& context, const HcHeadArgs& args);

}  // namespace dsv4
