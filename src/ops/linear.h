// y_j = x W_j^T for up to kMaxLinearJobs weights that share x. float32 sums. With kE4M3, x passes through the per-128 E4M3 rounding
// before products with FP8 and MXFP4 weights (not before BF16 and F32 ones). k must be a multiple of 128 where it is rounded.
// Source: model.md 1, 9.
#pragma once

#include "ops/op.h"
#include "tensor/weight.h"

namespace dsv4 {

inline constexpr int kMaxLinearJobs = 8;

struct LinearJob {
  WeightView weight;  // [N, K]
  Matrix<float> y;    // [T, N]
};

struct LinearArgs {
  Matrix<const float> x;  // [T, K]
  ActivationRounding rounding = ActivationRounding::kNone;
  int num_jobs = 0;
  LinearJob jobs[kMaxLinearJobs];
};

Status check(const LinearArgs& args);
OpCost cost(const LinearArgs& args);
Status linear_reference(OpContext& context, const LinearArgs& args);

}  // namespace dsv4
