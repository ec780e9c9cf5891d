// Watches steps and may end single requests: the door for validation. Off (null) it costs one comparison a step.
#pragma once

#include <cstdint>
#include <span>

#include "engine/step_runner.h"

namespace dsv4 {

// What the next tensors belong to; valid until the step's last call.
struct StepFacts {
  const StepInput& rows;
  std::span<const uint64_t> row_requests;  // [T] request of each row
  const ModelConfig& config;
  const KvCache& cache;  // block tables may be read once the first tensor is seen
};

class StepJudge : public StepObserver {
 public:
  // Before the step's first tensor.
  virtual Status begin_step(const StepFacts& facts) = 0;
  // After the step: ok, or why `request` must end (it gets kError with this Status; others go on).
  virtual Status verdict(uint64_t request) = 0;
  // A token chosen for `request`, before it is given out; position is the token's own.
  virtual Status chosen(uint64_t request, int64_t position, int32_t token) = 0;
};

}  // namespace dsv4
