// Routed experts, added onto y: y[t] += sum over chosen k (in order) of w2_e (silu(min(w1_e x, limit)) * clamp(w3_e x) * weight[t][k]),
// e = experts[t][k]. x and the weighted product are rounded before their products as asked for (the routing weight multiplies BEFORE
// w2's rounding). float32 sums. An expert id < 0 is skipped. Source: model.md 8, 9.
#pragma once

#include "ops/op.h"
#include "tensor/weight.h"

namespace dsv4 {

// Packed experts of one layer. The six arrays hold one pointer per expert and lie, like what they point to, in device memory.
struct ExpertTable {
  WeightFormat format = WeightFormat::kMxfp4;
  int64_t num_experts = 0;
  int64_t hidden_dim = 0;  // D: w1, w3 are [F, D]; w2 is [D, F]
  int64_t ffn_dim = 0;     // F
  const uint8_t* const* w1 = nullptr;
  const uint8_t* const* w1_scale = nullptr;
  const uint8_t* const* w3 = nullptr;
  const uint8_t* const* w3_scale = nullptr;
  const uint8_t* const* w2 = nullptr;
  const uint8_t* const* w2_scale = nullptr;
};

struct MoeExpertsArgs {
  Matrix<const float> x;  // [T, D]
  ExpertTable table;
  Matrix<const int32_t> experts;  // [T, top_k]
  Matrix<const float> weights;    // [T, top_k]
  float limit = 0;
  ActivationRounding rounding = ActivationRounding::kNone;
  Matrix<float> y;  // [T, D], added onto
};

Status check(const MoeExpertsArgs& args);
OpCost cost(const MoeExpertsArgs& args);  // assumes every chosen expert is distinct up to num_experts
Status moe_experts_reference(OpContext& context, const MoeExpertsArgs& args);

}  // namespace dsv4
