// A whole decoder layer of V4 Flash (160 experts) as the model runs it, with random weights: each operator alone, and the layer as one chain.
#pragma once

#include <string>
#include <vector>

#include "bench_support.h"
#include "ops/moe_experts.h"

namespace dsv4::bench {

// Packed experts with random contents; `stored` of them exist, the others point at them in turn.
class Experts {
 public:
  Experts(Arena& arena, int64_t num_experts, int64_t hidden_dim, int64_t ffn_dim, int64_t stored, uint32_t seed);
  const ExpertTable& table() const { return table_; }

 private:
  ExpertTable table_;
};

struct LayerTiming {
  std::string name;
  int64_t rows = 0;
  double us = 0;       // per call, replayed in a graph
  double kernels = 0;
};

// Chains of ratio 0, 4 and 128 at `position` (decode) or a prompt of `rows` (above 64), every light operator alone, the head, and the sum for 43 layers.
std::vector<LayerTiming> time_layers(Arena& arena, int64_t rows, int32_t position, const std::string& filter);
void print_layers(const std::vector<LayerTiming>& timings);

}  // namespace dsv4::bench
