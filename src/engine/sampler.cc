#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace dsv4 {
namespace {

// Below 2^53, from (seed, index): two rounds of the splitmix64 finaliser over a Weyl sequence (Steele, Lea, Flood 2014).
int64_t random_at(uint64_t seed, uint64_t index) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  return static_cast<int64_t>(mix(mix(seed) + (index + 1) * 0x9e3779b97f4a7c15u) >> 11);
}

void apply_penalties(const SamplingParams& p, const SamplerInput& in) {
  for (const auto& [token, bias] : p.logit_bias) in.logits[static_cast<size_t>(token)] += bias;
  if (p.repetition_penalty != 1) {
    std::unordered_set<int32_t> seen(in.prompt.begin(), in.prompt.end());
    seen.insert(in.generated.begin(), in.generated.end());
    for (const int32_t token : seen) {
      float& l = in.logits[static_cast<size_t>(token)];
      l = l > 0 ? l / p.repetition_penalty : l * p.repetition_penalty;
    }
  }
  if (p.frequency_penalty != 0 || p.presence_penalty != 0) {
    std::unordered_map<int32_t, int32_t> counts;
    for (const int32_t token : in.generated) ++counts[token];
    for (const auto& [token, count] : counts) in.logits[static_cast<size_t>(token)] -= p.frequency_penalty * static_cast<float>(count) + p.presence_penalty;
  }
}

}  // namespace

Result<int32_t> sample_token(const SamplingParams& p, TokenConstraint* constraint, const SamplerInput& in) {
  // A raw NaN must not hide behind a mask or a penalty.
  for (size_t i = 0; i < in.logits.size(); ++i) {
    if (std::isnan(in.logits[i])) return numerical_error("logits: NaN at token " + std::to_string(i));
  }
  apply_penalties(p, in);
  if (constraint != nullptr) DSV4_RETURN_IF_ERROR(constraint->mask(in.logits));
  const auto best = std::max_element(in.logits.begin(), in.logits.end());  // the first of equals
  if (!std::isfinite(*best)) return numerical_error("logits: no token is possible");
  const auto id = static_cast<int32_t>(best - in.logits.begin());
  return p.temperature == 0 ? id : sample_row(in.logits.data(), static_cast<int64_t>(in.logits.size()), id, draw_of(p, in.seed, in.generated.size()));
}

Draw draw_of(const SamplingParams& p, uint64_t seed, size_t index) { return {p.temperature, p.top_p, p.min_p, p.top_k, random_at(seed, index)}; }

bool stays_on_device(const Request& r) {
  const SamplingParams& p = r.sampling;
  return p.repetition_penalty == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0 && p.logit_bias.empty() && r.constraint == nullptr &&
         r.num_logprobs < 0 && !r.logits_hook;
}

LogprobRow logprobs_of(std::span<const float> logits, int32_t chosen, int32_t num_top) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - top);
  const double log_sum = top + std::log(sum);
  const auto entry = [&](int32_t id) { return TokenLogprob{id, static_cast<float>(logits[static_cast<size_t>(id)] - log_sum)}; };
  LogprobRow row{entry(chosen), {}};
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t n = std::min(ids.size(), static_cast<size_t>(std::max(0, num_top)));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(n), ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (size_t i = 0; i < n; ++i) row.top.push_back(entry(ids[i]));
  return row;
}

}  // namespace dsv4
