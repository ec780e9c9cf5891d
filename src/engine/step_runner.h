// Feeds a batch plan to the model: fills the step's device buffers, runs the forward pass (eagerly or as a captured graph), brings
// back tokens or logits. It owns no sequence state.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/batch_plan.h"
#include "model/model.h"

namespace dsv4 {

// Decode steps of devices with graphs: no graph, one graph but for the attention of each layer, which runs between its pieces (diagnosis), one graph.
enum class GraphMode : uint8_t { kEager, kPiecewise, kFull };

const char* graph_mode_name(GraphMode mode);  // "eager", "piecewise", "full"
std::optional<GraphMode> graph_mode_named(std::string_view name);

// Rows of a step on the host, one entry per row or sequence as in StepView.
struct StepInput {
  std::vector<int32_t> token_ids, positions, slots;  // [T]
  std::vector<int32_t> cu_rows;                      // [S + 1]
  std::vector<int32_t> seq_slots;                    // [S]
  std::vector<int32_t> logits_rows;                  // [R]
  std::vector<Draw> draws;                           // [R] how their tokens are chosen; empty: all by arg max

  void clear();
};

struct StepOutput {
  std::vector<int32_t> tokens;  // [R]; -1 = the row holds a NaN, or its largest logit is infinite and something was to be drawn
  std::vector<float> logits;    // [R * vocab], only when they were wanted
};

class StepRunner {
 public:
  static Result<std::unique_ptr<StepRunner>> create(Model& model, KvCache& cache, Device& device, GraphMode mode);

  // Error: whatever the operators report. Nothing but `input` changes between calls of one shape, so a decode step of a device
  // with graphs is captured once per shape and replayed.
  Result<StepOutput> run(const StepInput& input, bool want_logits, StepObserver* observer = nullptr);

  // Seconds spent waiting for the device so far: what a run takes beyond that is the host's.
  double wait_seconds() const { return wait_seconds_; }

  int64_t num_graphs() const { return static_cast<int64_t>(graphs_.size()); }

 private:
  StepRunner(Model& model, KvCache& cache, Device& device, GraphMode mode) : model_(model), cache_(cache), device_(device), mode_(mode) {}
  // Queues the step that buffers_ describes; `drawn`: with the draws.
  Status launch(const StepView& view, bool drawn, StepObserver* observer);

  Model& model_;
  KvCache& cache_;
  Device& device_;
  GraphMode mode_;
  DeviceBuffer input_;   // int32: six arrays at fixed places
  DeviceBuffer draws_;   // Draw [max_logits_rows]
  DeviceBuffer tokens_;  // int32 [max_logits_rows]
  std::vector<int32_t> staging_;
  std::vector<Draw> draw_staging_;
  double wait_seconds_ = 0;
  const float* logits_ = nullptr;                                                             // the model's logits, a fixed address
  std::map<std::tuple<int64_t, int64_t, int64_t, bool>, std::unique_ptr<StepGraph>> graphs_;  // (T, S, R, drawn)
};

}  // namespace dsv4
