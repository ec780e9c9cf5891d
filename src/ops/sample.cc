#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/host.h"

namespace dsv4 {
namespace {

struct Candidate {
  uint64_t weight;
  int32_t id;
};

bool before(const Candidate& a, const Candidate& b) { return a.weight != b.weight ? a.weight > b.weight : a.id < b.id; }

// Candidates in order, sorted only as far as they are looked at: most draws end within the first few of 129,280, and sorting all of them takes longer
// than a decode step.
class InOrder {
 public:
  explicit InOrder(std::vector<Candidate>& candidates) : candidates_(candidates) {}
  const Candidate& operator[](size_t i) {
    while (i >= sorted_) grow();
    return candidates_[i];
  }

 private:
  void grow() {
    constexpr size_t kFirst = 64, kFactor = 8;
    const size_t next = std::min(candidates_.size(), sorted_ == 0 ? kFirst : kFactor * sorted_);
    const auto begin = candidates_.begin() + static_cast<int64_t>(sorted_), end = candidates_.begin() + static_cast<int64_t>(next);
    if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), before);
    std::sort(begin, end, before);
    sorted_ = next;
  }

  std::vector<Candidate>& candidates_;
  size_t sorted_ = 0;
};

uint64_t sum(const std::vector<Candidate>& candidates) {
  uint64_t total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

}  // namespace

Status check(const SampleArgs& a) {
  if (a.logits.rows > 0 && (a.logits.cols < 1 || a.logits.cols > kMaxSampleVocab)) {
    return invalid_argument("sample: the logits have " + std::to_string(a.logits.cols) + " columns, it must be 1 to " + std::to_string(kMaxSampleVocab));
  }
  if (a.logits.rows > 0) DSV4_RETURN_IF_ERROR(check_present("sample", "draws", a.draws));
  return check_size("sample", "ids", a.ids.size, a.logits.rows);
}

OpCost cost(const SampleArgs& a) { return {4 * a.logits.rows * (a.logits.cols + 8), 30 * a.logits.rows * a.logits.cols}; }

int32_t sample_row(const float* logits, int64_t n, int32_t best, const Draw& draw) {
  if (!std::isfinite(logits[best])) return -1;
  const double inverse = 1.0 / static_cast<double>(draw.temperature);
  std::vector<Candidate> candidates;
  candidates.reserve(static_cast<size_t>(n));
  constexpr int64_t kBlock = 512;  // weights are made in loops that vectorise
  uint64_t weights[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    for (int64_t i = 0; i < count; ++i) weights[i] = sample_weight(logits[begin + i], logits[best], inverse);
    for (int64_t i = 0; i < count; ++i) {
      if (weights[i] > 0) candidates.push_back({weights[i], static_cast<int32_t>(begin + i)});
    }
  }
  if (draw.top_k > 0 && static_cast<size_t>(draw.top_k) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + draw.top_k, candidates.end(), before);
    candidates.resize(static_cast<size_t>(draw.top_k));
  }
  const auto least = static_cast<uint64_t>(std::ceil(std::ldexp(static_cast<double>(draw.min_p), kSampleWeightBits)));
  if (least > 0) std::erase_if(candidates, [least](const Candidate& c) { return c.weight < least; });

  uint64_t mass = sum(candidates);
  InOrder order(candidates);
  if (draw.top_p < 1) {
    const auto wanted = static_cast<uint64_t>(static_cast<double>(draw.top_p) * static_cast<double>(mass));
    mass = 0;
    for (size_t i = 0; i == 0 || mass < wanted; ++i) mass += order[i].weight;
  }
  uint64_t target = static_cast<uint64_t>(static_cast<unsigned __int128>(draw.random) * mass >> 53);
  size_t i = 0;
  for (; target >= order[i].weight; ++i) target -= order[i].weight;
  return order[i].id;
}

Status sample_reference(OpContext& context, const SampleArgs& a) {
  reference::for_each_row(context, a.logits.rows, [&](int64_t r) {
    int32_t& id = a.ids.data[r];
    if (a.draws[r].temperature > 0 && id >= 0) id = sample_row(a.logits.row(r), a.logits.cols, id, a.draws[r]);
  });
  return ok_status();
}

}  // namespace dsv4
