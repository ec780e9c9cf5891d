// The forward pass of DeepSeek V4, written once against the operator table. Source: model.md sections 2 to 9.
#pragma once

#include <memory>

#include "checkpoint/model_config.h"
#include "model/arithmetic.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "ops/device.h"
#include "ops/fused_ops.h"

namespace dsv4 {

struct ModelOptions {
  Arithmetic arithmetic = Arithmetic::kQat;
  int64_t max_step_rows = 256;   // rows of one step, all sequences together
  int64_t max_logits_rows = 64;  // rows of a step whose logits are wanted
};

// One step's rows; pointers are device memory.
struct StepView {
  SequenceRows rows;
  Vector<const int32_t> token_ids;    // [T]; -1 = padding
  Vector<const int32_t> logits_rows;  // [R] rows whose logits are wanted
  // Tokens of the longest sequence after the step, where the caller may say so: the operators' costs then count what it has, not what the
  // cache could hold. 0 in steps that are captured and run again with other lengths.
  int64_t longest = 0;
};

// Sees intermediate tensors as they are computed (device memory, valid during the call). For validation, traces, accuracy reports.
// Names, in the order of a layer: "streams" (before it), "attn.x", "attn.qr", "attn.kv_raw", "attn.index_q", "attn.topk", "attn.q",
// "attn.o", "attn.o_low", "attn.y", "ffn.x", "ffn.gate_logits", "ffn.shared_act", "ffn.experts", "ffn.weights", "ffn.y"; at the end "final.x" and
// "logits" (layer = num_layers).
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual Status tensor(const char* name, int64_t layer, Matrix<const float> values) = 0;
  virtual Status indices(const char* name, int64_t layer, Matrix<const int32_t> values) = 0;
};

class Model {
 public:
  // `weights` and `device` outlive the model. kUnsupported when the device lacks an operator, kInvalidArgument for options that
  // contradict each other.
  static Result<std::unique_ptr<Model>> create(const ModelConfig& config, const ModelWeights& weights, const ModelOptions& options, Device& device);

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  int64_t scratch_bytes() const { return scratch_.size_bytes(); }

  // Runs a step against `cache`, which has room for its positions. Returns the logits [R, vocab], on the device until the next step.
  // Everything is queued on the device; nothing is read back.
  Result<Matrix<const float>> forward(const StepView& step, KvCache& cache, StepObserver* observer = nullptr);

 private:
  struct Scratch;  // the step's intermediate tensors, carved from scratch_

  Model(const ModelConfig& config, const ModelWeights& weights, const ModelOptions& options, Device& device);
  Status allocate_scratch();
  // `join`: the hyper-connections before this sub-block, if they are still to be done, with its first products.
  Status attention(int64_t layer, const StepView& step, KvCache& cache, const HcPostPreArgs* join, StepObserver* observer);
  Status moe(int64_t layer, const StepView& step, const HcPostPreArgs* join, StepObserver* observer);
  Status first_products(const char* name, const HcPostPreArgs* join, const LinearArgs& products);
  // Angles of a layer's kind: at the row's position, and at the first token of the window it completes.
  Matrix<const float> angles(int32_t ratio) const;

  template <class Args>
  Status run(const char* name, OpSlot<Args> OpTable::*slot, const Args& args) {
    return run_op(name, device_.context(), ops_.*slot, args);
  }
  template <class T>
  Matrix<T> take_rows(T* base, int64_t cols) const {
    return {base, rows_, cols};
  }

 public:
  ~Model();

 private:
  ModelConfig config_;
  const ModelWeights& weights_;
  ModelOptions options_;
  Device& device_;
  const OpTable& ops_;    // of the device,
  const FusedOps fused_;  // and what it fuses of them; nothing in emulation
  DeviceBuffer scratch_;
  DeviceBuffer frequencies_;  // plain, then YaRN: rope_dim / 2 floats each
  std::unique_ptr<Scratch> s_;
  int64_t rows_ = 0;  // of the step in hand
};

}  // namespace dsv4
