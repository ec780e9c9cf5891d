// Collects what an accuracy report compares from one prefill: tensors at chosen positions, and the checks of the engine against itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace dsv4 {

class AccuracyTap final : public StepJudge {
 public:
  // Watches `engine` until it is destroyed. `positions` ascending. With `check_self`, cache rows and attention at these positions are
  // computed again on the host.
  AccuracyTap(Engine& engine, std::vector<int64_t> positions, bool check_self);
  ~AccuracyTap() override;

  struct Worst {
    double error = 0;
    int64_t position = -1;
    int64_t index = -1;  // cache: 0 window, 1 compressed; attention: head
  };

  // Rows of one tensor, in the order of the positions.
  using Key = std::pair<std::string, int64_t>;  // name, layer
  const std::map<Key, std::vector<std::vector<float>>>& tensors() const { return tensors_; }
  // Rows whose input is not finite already are left out: position -1 = none of the layer was compared.
  const std::vector<Worst>& cache_errors() const { return cache_; }          // [layer]
  const std::vector<Worst>& attention_errors() const { return attention_; }  // [layer]

  Status begin_step(const StepFacts& facts) override;
  Status tensor(const char* name, int64_t layer, Matrix<const float> values) override;
  Status indices(const char* name, int64_t layer, Matrix<const int32_t> values) override;
  Status verdict(uint64_t) override { return ok_status(); }
  Status chosen(uint64_t, int64_t, int32_t) override { return ok_status(); }

 private:
  // Chosen positions of the step: (row, position).
  std::vector<std::pair<int64_t, int64_t>> rows_of_step(bool logits_rows) const;
  Status check_cache(int64_t layer);
  Status check_attention(int64_t layer, const Matrix<const float>& o);
  Result<std::vector<float>> fetch(const float* row, int64_t cols);

  Engine& engine_;
  std::vector<int64_t> positions_;
  bool check_self_;
  std::optional<StepFacts> facts_;  // of the step in hand
  std::map<Key, std::vector<std::vector<float>>> tensors_;
  std::map<int64_t, std::vector<float>> q_, kv_raw_;  // of the layer in hand, by position
  std::map<int64_t, std::vector<int32_t>> topk_;
  std::vector<Worst> cache_, attention_;
};

}  // namespace dsv4
