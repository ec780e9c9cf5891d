// For tests: engines and bare step runners of the shipped models and of synthetic shapes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend_flag.h"
#include "engine/engine.h"
#include "verify/runs.h"

namespace dsv4 {

inline constexpr const char* kTinyModel = "models/dsv4-tiny";
inline constexpr const char* kRandModel = "tests/data/models/dsv4-rand";

// "cpu" (the fast backend), "reference", or what the program's --backend says.
std::unique_ptr<Device> test_device(const std::string& backend = tested_backend());

// EXPECTs success.
std::unique_ptr<Engine> test_engine(const std::string& model, const EngineOptions& options, const std::string& backend = tested_backend());
EngineFactory test_factory(const std::string& model, const std::string& backend = tested_backend());

// n ids below `vocab`, a pure function of the seed.
std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint64_t seed);

// The first n ids of the shipped model's eval.txt, <bos> first.
std::vector<int32_t> eval_tokens(int64_t n);

// A model, a cache of several slots and a step runner without an engine's scheduler: the test says which rows make a step.
class StepRig {
 public:
  struct Options {
    Arithmetic arithmetic = Arithmetic::kQat;
    RowFormat format = RowFormat::kFp8DsMla;
    int32_t num_slots = 8;
    int64_t max_context_tokens = 512;
    int64_t max_step_rows = 512;
    GraphMode graph = GraphMode::kFull;
  };
  StepRig(const std::string& model, const Options& options, std::unique_ptr<Device> device);

  const ModelConfig& config() const { return checkpoint_.config(); }
  Device& device() { return *device_; }

  // A piece of a sequence: tokens [first, first + tokens.size()) of the sequence in `slot`.
  struct Piece {
    int32_t slot = 0;
    int64_t first = 0;
    std::vector<int32_t> tokens;
  };
  using Rows = std::vector<std::vector<float>>;  // logits of each row
  // One step; the logits of every row, piece by piece.
  Rows step(const std::vector<Piece>& pieces);
  // The whole sequence from position 0 in the pieces given (sizes; the last one repeats); logits of every position.
  Rows feed(int32_t slot, const std::vector<int32_t>& tokens, const std::vector<int64_t>& sizes);

 private:
  Checkpoint checkpoint_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<StepRunner> runner_;
};

// Position of the first row that is not bit for bit the same (or -1): a NaN equals nothing.
int64_t first_difference(const StepRig::Rows& a, const StepRig::Rows& b);

// A fresh directory with a synthetic model of this shape.
std::string write_model(const ModelConfig& config, const std::string& tag);
// Small shapes: hidden 128, 3 layers with ratios 0, 4, 128, `num_experts` experts of which min(6, num_experts) are chosen.
ModelConfig small_config(int64_t num_experts);
// A random valid shape of up to 3 layers, a pure function of the seed.
ModelConfig random_config(uint64_t seed);

}  // namespace dsv4
