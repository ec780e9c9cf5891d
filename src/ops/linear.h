// y_j = x W_j^T for up to kMaxLinearJobs weights that share x. float32 sums. x passes through the rounding
// asked for before products with FP8 and MXFP4 weights (not before BF16 and F32 ones). k must be a multiple of 128 where that is kE4M3.
// Source: model.md 1, 9.
#pragma once

#include "ops/op.h"
#include "tensor/weight.h"

namespace dsv4 {

inline constexpr int kMaxLinearJobs = 8;

// Whether a product with weights of this format rounds its activations at all.
inline bool takes_rounding(WeightFormat f) { return f == WeightFormat::kFp8Block || f == WeightFormat::kMxfp4; }

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
