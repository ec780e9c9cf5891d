// sample: exact, against everything sorted. The weights are sample_weight's own, whose values sample_test.cc holds against exp.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/sample.h"
#include "ops/testing/case_lists.h"
#include "ops/testing/case_tools.h"

namespace dsv4::optest {
namespace {

enum class Logits { kNormal, kFlat, kTies, kSharp, kUnusual };

struct Sample {
  int64_t rows = 1, vocab = 1000, pad = 0;
  Logits logits = Logits::kNormal;
};

int32_t drawn_by_definition(const float* x, int64_t n, int32_t best, const Draw& d) {
  if (!(d.temperature > 0) || best < 0) return best;
  if (!std::isfinite(x[best])) return -1;
  std::vector<uint64_t> weights;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    weights.push_back(sample_weight(x[i], x[best], 1.0 / static_cast<double>(d.temperature)));
    if (weights.back() > 0) ids.push_back(static_cast<int32_t>(i));
  }
  const auto weight = [&](int32_t id) { return weights[static_cast<size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return weight(a) > weight(b); });
  if (d.top_k > 0 && d.top_k < static_cast<int32_t>(ids.size())) ids.resize(static_cast<size_t>(d.top_k));
  while (static_cast<double>(weight(ids.back())) < static_cast<double>(d.min_p) * 0x1p40) ids.pop_back();
  uint64_t total = 0;
  for (const int32_t id : ids) total += weight(id);
  if (d.top_p < 1) {
    const auto wanted = static_cast<uint64_t>(static_cast<double>(d.top_p) * static_cast<double>(total));
    size_t keep = 1;
    for (total = weight(ids[0]); total < wanted; ++keep) total += weight(ids[keep]);
    ids.resize(keep);
  }
  unsigned __int128 target = static_cast<unsigned __int128>(d.random) * total / (uint64_t{1} << 53);
  for (const int32_t id : ids) {
    if (target < weight(id)) return id;
    target -= weight(id);
  }
  return -2;
}

void build_sample(Problem& p, const Sample& c) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  p.num_rows = c.rows;
  const int64_t n = c.vocab;
  std::vector<float> logits = p.rng.activations(c.rows * n, c.logits == Logits::kSharp ? 12 : c.logits == Logits::kFlat ? 1e-3 : 3);
  if (c.logits == Logits::kTies) {
    for (float& l : logits) l = std::round(l / 2);
  }
  std::vector<int32_t> ids, draws;
  std::vector<Draw> settings;
  for (int64_t r = 0; r < c.rows; ++r) {
    float* x = logits.data() + r * n;
    if (c.logits == Logits::kUnusual) {
      if (r % 5 == 0) std::fill(x, x + n, -kInf), x[n - 1] = -7;  // one token is possible
      if (r % 5 == 1) std::fill(x, x + n, -kInf);                 // none
      if (r % 5 == 2) x[n / 3] = kInf;
      if (r % 5 == 3) std::fill(x, x + n, 0.0f);
      if (r % 5 == 4) x[0] = 80;  // nothing else weighs anything at low temperatures
    }
    ids.push_back(c.logits == Logits::kUnusual && r % 11 == 7 ? -1 : static_cast<int32_t>(std::max_element(x, x + n) - x));
    Draw d{.temperature = 1, .random = p.rng.below(int64_t{1} << 53)};
    const int64_t kind = r % 9;
    if (kind == 1) d.temperature = 0;
    if (kind == 2) d.top_p = 0.9f;
    if (kind == 3) d.top_k = static_cast<int32_t>(std::min<int64_t>(40, n));
    if (kind == 4) d.min_p = 0.05f;
    if (kind == 5) d = {1.5f, 0.999f, 1e-4f, 300, d.random};
    if (kind == 6) d.temperature = 100;
    if (kind == 7) d = {0.1f, 1e-6f, 0.9f, 1, d.random};
    if (kind == 8) d.random = r % 2 == 0 ? 0 : (int64_t{1} << 53) - 1;  // the first and the last candidate
    settings.push_back(d);
    int32_t words[sizeof(Draw) / 4];
    std::memcpy(words, &d, sizeof(d));
    draws.insert(draws.end(), words, words + sizeof(Draw) / 4);
  }
  const int lt = p.add_rows("logits", n, c.pad, logits), dt = p.add_rows("draws", sizeof(Draw) / 4, 0, draws);
  const int out = p.add("ids", Role::kUpdated, true, c.rows, 1, 0, ids);
  p.call = [=](Device& d, const Bound& b) {
    const Matrix<int32_t> rows = b.matrix<int32_t>(dt);
    return run_op("sample", d.context(), d.ops().sample, SampleArgs{b.matrix<float>(lt), reinterpret_cast<const Draw*>(rows.data), b.vector<int32_t>(out)});
  };
  std::vector<int32_t> expected;
  for (int64_t r = 0; r < c.rows; ++r) {
    const size_t i = static_cast<size_t>(r);
    expected.push_back(drawn_by_definition(logits.data() + r * n, n, ids[i], settings[i]));
  }
  p.judge = [&p, out, expected](const Images& actual, const Images*, Verdict& v) { judge_ints(p, out, expected, actual, v); };
}

}  // namespace

void add_sample_cases(std::vector<OpCase>& cases) {
  const auto sample = [&](const char* name, Sample c) { add_case(cases, "sample", name, build_sample, c); };
  sample("zero_tokens", {.rows = 0});
  sample("one_row", {});
  sample("one_column", {.rows = 9, .vocab = 1});
  sample("sixty_five_rows", {.rows = 65});
  sample("ties", {.rows = 30, .vocab = 3000, .logits = Logits::kTies});
  sample("flat", {.rows = 18, .vocab = 5000, .logits = Logits::kFlat});
  sample("sharp_strided", {.rows = 20, .vocab = 777, .pad = 3, .logits = Logits::kSharp});
  sample("infinities_and_none", {.rows = 45, .vocab = 300, .logits = Logits::kUnusual});
  sample("v4_flash_vocabulary", {.rows = 10, .vocab = 129280});
  sample("v4_flash_vocabulary_flat", {.rows = 4, .vocab = 129280, .logits = Logits::kFlat});
}

}  // namespace dsv4::optest
