// The tensors of a synthetic model, generated into anonymous memory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_entry.h"

namespace dsv4 {

// One anonymous mapping; its pages come into being when first written.
class AnonymousMemory {
 public:
  AnonymousMemory() = default;
  AnonymousMemory(AnonymousMemory&& other) noexcept { *this = std::move(other); }
  AnonymousMemory& operator=(AnonymousMemory&& other) noexcept;
  ~AnonymousMemory();

  // kResourceLimit, naming both sizes, when the machine has less memory available: better than to be killed halfway.
  static Result<AnonymousMemory> allocate(int64_t size_bytes);

  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// Entries of `expected` in its order, without data, "synthetic" as their file.
std::vector<TensorEntry> synthetic_entries(const std::vector<ExpectedTensor>& expected);

struct SyntheticRequest {
  const ModelConfig& config;
  const std::vector<ExpectedTensor>& expected;
  uint64_t seed = 1;
  const ProgressSink& progress;    // task "generate", unit "bytes"
  int64_t most_bytes = INT64_MAX;  // larger tensors are left out: their `data` stays null
};

// Generates them on every core and sets the entries' `data`; each tensor begins at a multiple of 256 bytes.
Result<AnonymousMemory> generate_synthetic(const SyntheticRequest& request, std::vector<TensorEntry>* entries);

}  // namespace dsv4
