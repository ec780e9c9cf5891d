// The tensors a configuration calls for: the one table behind validation, synthetic weights, and the inspector.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "tensor/dtype.h"
#include "tensor/weight.h"

namespace dsv4 {

// The part of the model a tensor belongs to: what the inspector adds up.
enum class TensorGroup : uint8_t {
  kEmbedding,
  kHead,
  kNorm,
  kAttention,
  kCompressor,
  kIndexer,
  kHyperConnection,
  kRouter,
  kRoutedExpert,
  kSharedExpert,
  kDraft
};
inline constexpr int kNumTensorGroups = 11;
const char* tensor_group_name(TensorGroup group);  // "routed experts"

// What the values are, beyond their dtype: which rule generates them.
enum class TensorKind : uint8_t {
  kWeight,       // matrix of a product, or rows looked up
  kWeightScale,  // its E8M0 scales
  kNorm,         // RMSNorm weight, near 1
  kMixFn,        // hyper-connection projection
  kMixBase,      // its bias
  kMixScale,     // its gain
  kSink,         // attention sink logits
  kPosition,     // compressor's additive position term ("ape")
  kRouterBias,   // selection bias
  kHashTable,    // token id -> expert ids
};

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  TensorGroup group = TensorGroup::kNorm;
  TensorKind kind = TensorKind::kWeight;
  WeightFormat format = WeightFormat::kF32;  // of the weight, also for its scale
  int64_t fan_in = 0;                        // values summed by one output of the product this belongs to; the scale's is its weight's; 0 for others
  int64_t layer = -1;                        // -1 outside layers
};

// All tensors of the model without draft blocks, in the order of the forward pass. Sizes must have passed read_model_config.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// The tensors of `num_blocks` DSpark blocks "mtp.S." (0731 checkpoints). `markov_rank` is read from the tensors themselves.
std::vector<ExpectedTensor> expected_dspark_tensors(const ModelConfig& config, int64_t num_blocks, int64_t markov_rank);

}  // namespace dsv4
