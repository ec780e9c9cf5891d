// cos and sin of a step's positions, computed once and shared by all layers of a kind: for position p = positions[t] + offset,
// out[t][2i] = cos(a), out[t][2i+1] = sin(a), a = float(p) * freqs[i] rounded to float32. p < 0 gives cos 1, sin 0. `freqs` come from
// rope_frequencies (plain, or YaRN for layers with a compressor). Source: model.md 4.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct RopeTableArgs {
  Vector<const int32_t> positions;  // [T]
  int32_t offset = 0;
  Vector<const float> freqs;  // [rope_dim / 2]
  Matrix<float> out;          // [T, rope_dim]
};

struct YarnScaling {
  double factor = 1;
  int64_t original_positions = 0;
  double beta_fast = 32;
  double beta_slow = 1;
};

// freq_i = base^(-2i/rope_dim), i < rope_dim/2, into out; with `yarn`, blended as model.md 4 says. Host memory.
void rope_frequencies(int64_t rope_dim, double base, const YarnScaling* yarn, float* out);

Status check(const RopeTableArgs& args);
OpCost cost(const RopeTableArgs& args);
Status rope_table_reference(OpContext& context, const RopeTableArgs& args);

}  // namespace dsv4
