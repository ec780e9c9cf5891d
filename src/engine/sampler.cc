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

struct Candidate {
  float logit;
  int32_t id;
};

// Candidates best first (ties: lowest id), sorted only as far as they are looked at: most draws end within the first few of 129,280, and sorting
// all of them takes longer than a decode step.
class BestFirst {
 public:
  explicit BestFirst(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {}
  size_t size() const { return candidates_.size(); }
  const Candidate& operator[](size_t i) {
    while (i >= sorted_) grow();
    return candidates_[i];
  }

 private:
  void grow() {
    constexpr size_t kFirst = 64, kFactor = 8;
    const auto better = [](const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; };
    const size_t next = std::min(candidates_.size(), sorted_ == 0 ? kFirst : kFactor * sorted_);
    const auto begin = candidates_.begin() + static_cast<int64_t>(sorted_), end = candidates_.begin() + static_cast<int64_t>(next);
    if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), better);
    std::sort(begin, end, better);
    sorted_ = next;
  }

  std::vector<Candidate> candidates_;
  size_t sorted_ = 0;
};

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

  // Weights are relative to the best; what min_p leaves are the candidates.
  const float top = *best;
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - top) / p.temperature); };
  const bool cut = p.top_k > 0 && static_cast<size_t>(p.top_k) < in.logits.size();
  std::vector<Candidate> candidates;
  candidates.reserve(in.logits.size());
  double total = 0;
  for (size_t i = 0; i < in.logits.size(); ++i) {
    if (!cut) {  // else the few that remain are weighed below
      const double w = weight(in.logits[i]);
      if (!(w >= p.min_p) || w == 0) continue;
      total += w;
    }
    candidates.push_back({in.logits[i], static_cast<int32_t>(i)});
  }
  BestFirst order(std::move(candidates));
  size_t count = order.size();
  if (cut) {
    for (count = 0; count < static_cast<size_t>(p.top_k); ++count) {
      const double w = weight(order[count].logit);
      if (!(w >= p.min_p) || w == 0) break;
      total += w;
    }
  }
  if (p.top_p < 1) {
    double mass = 0;
    size_t keep = 0;
    while (keep < count && mass < p.top_p * total) mass += weight(order[keep++].logit);
    count = std::max<size_t>(1, keep);
    total = mass;
  }
  double target = uniform_at(in.seed, in.generated.size()) * total;
  for (size_t i = 0; i < count; ++i) {
    target -= weight(order[i].logit);
    if (target < 0) return order[i].id;
  }
  return order[count - 1].id;  // rounding ate the rest
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
