// Synthetic models: real shapes, seeded weights, no files. tensor/synthetic_word.h has the formula; here are the rule of each tensor, the
// host's generator, and the models.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"
#include "tensor/synthetic_word.h"

namespace dsv4 {

SyntheticRule synthetic_rule(const ModelConfig& config, const ExpectedTensor& tensor, uint64_t seed);

// Bytes [first_byte, first_byte + size_bytes) of the tensor; first_byte is a multiple of 8.
void fill_synthetic(const SyntheticRule& rule, int64_t first_byte, int64_t size_bytes, uint8_t* out);

// "synthetic:flash", "synthetic:k160", "synthetic:tiny". Others: kNotFound naming the three.
bool is_synthetic_model(std::string_view model);
Result<ModelConfig> synthetic_config(const std::string& model);

}  // namespace dsv4
