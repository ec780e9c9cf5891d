// Ways to run an engine that checks need: logits of every position, forced continuations, taps on intermediate tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace dsv4 {

// Makes an engine of the model under test. `options` are what the check needs (arithmetic, cache, sizes); the caller's factory adds
// device and model.
using EngineFactory = std::function<Result<std::unique_ptr<Engine>>(const EngineOptions& options)>;

using LogitsSink = std::function<void(int64_t position, std::span<const float> logits)>;

// Evaluates `tokens` as a prompt, in the engine's chunks; `sink` sees the logits of every position.
Status prefill_logits(Engine& engine, std::vector<int32_t> tokens, const LogitsSink& sink);

// Prefills the first `prefill` (at least 1) tokens, then feeds the others one by one as decode steps; `sink` sees the logits of every position.
Status forced_decode(Engine& engine, std::span<const int32_t> tokens, int64_t prefill, const LogitsSink& sink);

// A request for exactly `tokens` after `prompt`, whatever the model prefers.
Request forced_request(std::vector<int32_t> prompt, std::vector<int32_t> tokens);

// Plain greedy request.
Request greedy_request(std::vector<int32_t> prompt, int64_t max_new_tokens);

// Runs all requests together until they end; result i belongs to request i. A request that ends with an error fails the whole.
// `steps_before(i)`: steps of the engine between the arrivals of request i-1 and i; empty = none, they arrive at once.
Result<std::vector<Generation>> generate_together(Engine& engine, std::vector<Request> requests, const std::function<int64_t(size_t)>& steps_before = {});

// Copies observed tensors to the host.
class TensorTap : public StepObserver {
 public:
  explicit TensorTap(Device& device) : device_(device) {}

  // A tensor of the step in hand. Rows follow the step's rows (for "final.x" and "logits": its logits rows).
  virtual Status on_tensor(const std::string& name, int64_t layer, int64_t rows, int64_t cols, std::vector<float>& values) = 0;
  virtual Status on_indices(const std::string& name, int64_t layer, int64_t rows, int64_t cols, std::vector<int32_t>& values) {
    (void)name, (void)layer, (void)rows, (void)cols, (void)values;
    return ok_status();
  }
  // Whether the tensor is wanted at all: what is not is not copied.
  virtual bool wants(const std::string& name, int64_t layer) const {
    (void)name, (void)layer;
    return true;
  }

  Status tensor(const char* name, int64_t layer, Matrix<const float> values) final;
  Status indices(const char* name, int64_t layer, Matrix<const int32_t> values) final;

 protected:
  Device& device_;

 private:
  std::vector<float> floats_;
  std::vector<int32_t> ints_;
};

// Sets an engine's observer for a scope.
class ScopedObserver {
 public:
  ScopedObserver(Engine& engine, StepObserver* observer) : engine_(engine) { engine_.set_observer(observer); }
  ~ScopedObserver() { engine_.set_observer(nullptr); }
  ScopedObserver(const ScopedObserver&) = delete;
  ScopedObserver& operator=(const ScopedObserver&) = delete;

 private:
  Engine& engine_;
};

}  // namespace dsv4
