#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace dsv4 {
namespace {

// Uniform in [0, 1) from (seed, index): two rounds of the splitmix64 finaliser over a Weyl sequence (Steele, Lea, Flood 2014).
double uniform_at(uint64_t seed, uint64_t index) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  const uint64_t bits = mix(mix(seed) + (index + 1) * 0x9e3779b97f4a7c15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
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
  if (p.temperature == 0) return static_cast<int32_t>(best - in.logits.begin());

  // Candidates best first (ties: lowest id), with weights relative to the best.
  const float top = *best;
  std::vector<int32_t> ids(in.logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = in.logits[static_cast<size_t>(a)], y = in.logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + p.top_k, ids.end(), better);
    ids.resize(static_cast<size_t>(p.top_k));
  }
  std::sort(ids.begin(), ids.end(), better);
  std::vector<double> weights;
  double total = 0;
  for (const int32_t id : ids) {
    const double w = std::exp((static_cast<double>(in.logits[static_cast<size_t>(id)]) - top) / p.temperature);
    if (w < p.min_p) break;
    weights.push_back(w);
    total += w;
  }
  if (p.top_p < 1) {
    double mass = 0;
    size_t keep = 0;
    while (keep < weights.size() && mass < p.top_p * total) mass += weights[keep++];
    weights.resize(std::max<size_t>(1, keep));
    total = mass;
  }
  double target = uniform_at(in.seed, in.generated.size()) * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    target -= weights[i];
    if (target < 0) return ids[i];
  }
  return ids[weights.size() - 1];  // rounding ate the rest
}

bool is_plain_greedy(const Request& r) {
  const SamplingParams& p = r.sampling;
  return p.temperature == 0 && p.repetition_penalty == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0 && p.logit_bias.empty() &&
         r.constraint == nullptr && r.num_logprobs < 0 && !r.logits_hook;
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
