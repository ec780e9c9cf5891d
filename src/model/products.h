// The products of one forward pass, from a configuration alone: what a backend's kernel plan is asked about.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "ops/op.h"
#include "tensor/weight.h"

namespace dsv4 {

struct ModelProduct {
  std::string call;    // the operator's call in the forward pass: "attn_in"
  std::string weight;  // "wq_a"
  int64_t layers = 0;  // in how many layers it occurs; 0 = once, outside the layers
  int64_t n = 0, k = 0;
  WeightFormat format = WeightFormat::kF32;
  ActivationRounding rounding = ActivationRounding::kNone;
  int64_t groups = 1;   // grouped products: n rows in groups of their own k columns of x
  int64_t experts = 0;  // routed experts: weights of this size in a layer
};

// In the order of the pass, with the roundings of qat arithmetic.
std::vector<ModelProduct> model_products(const ModelConfig& config);

}  // namespace dsv4
