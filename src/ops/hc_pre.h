// Hyper-connection in front of a sub-block: mixes the residual streams into its input, and gives the weights for hc_post.
// With f = h[t] flat [m*D], r = 1/sqrt(mean(f^2) + rms_eps), mixes = (fn f) * r:
//   pre[i]  = sigmoid(mixes[i] * scale[0] + base[i]) + hc_eps
//   post[i] = 2 sigmoid(mixes[m+i] * scale[1] + base[m+i])
//   comb    = softmax over rows of (mixes[2m..] * scale[2] + base[2m..]) as [m][m], + hc_eps; columns / (sum + hc_eps); then
//             sinkhorn_iters - 1 times: rows / (sum + hc_eps), columns / (sum + hc_eps)
//   x = RMSNorm(sum_i pre[i] h[i], norm)
// All float32. The norm belongs here because the mixed row has no other reader. Source: model.md 3; mHC paper.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct HcPreArgs {
  Matrix<const float> h;           // [T, m*D]
  Matrix<const float> fn;          // [(2+m)*m, m*D]
  const float* base = nullptr;     // [(2+m)*m]
  const float* scale = nullptr;    // [3]
  const uint16_t* norm = nullptr;  // [D] BF16
  int64_t streams = 4;             // m, at most 8
  int64_t sinkhorn_iters = 20;
  float rms_eps = 1e-6f;
  float hc_eps = 1e-6f;
  Matrix<float> x;     // [T, D]
  Matrix<float> post;  // [T, m]
  Matrix<float> comb;  // [T, m*m]
};

Status check(const HcPreArgs& args);
OpCost cost(const HcPreArgs& args);
Status hc_pre_reference(OpContext& context, const HcPreArgs& args);

}  // namespace dsv4
