// Chooses a token from a row of logits. Pure functions: the same row, parameters and history give the same token, whatever else runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "ops/sample.h"

namespace dsv4 {

struct SamplerInput {
  std::span<float> logits;             // [vocab], changed in place
  std::span<const int32_t> prompt;     // for repetition_penalty
  std::span<const int32_t> generated;  // for all penalties; its size is the random number's index
  uint64_t seed = 0;
};

// Error: kNumerical "logits: NaN at token N" or "no token is possible".
Result<int32_t> sample_token(const SamplingParams& params, TokenConstraint* constraint, const SamplerInput& input);

// What the device's `sample` needs to choose the `index`-th token of an answer.
Draw draw_of(const SamplingParams& params, uint64_t seed, size_t index);

// Whether the row's arg max or a draw decides alone, so that the logits need not leave the device: no penalty, bias, constraint, logprobs or hook.
bool stays_on_device(const Request& request);

// The n best tokens of log-softmax(logits), best first (ties: lowest id), and the chosen one's.
struct LogprobRow {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};
LogprobRow logprobs_of(std::span<const float> logits, int32_t chosen, int32_t num_top);

}  // namespace dsv4
