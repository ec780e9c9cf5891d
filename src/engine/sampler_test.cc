#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace dsv4 {
namespace {

constexpr float kInf = INFINITY;

int32_t sample(const SamplingParams& params, std::vector<float> logits, std::vector<int32_t> generated = {}, uint64_t seed = 1,
               std::vector<int32_t> prompt = {}) {
  return sample_token(params, nullptr, {logits, prompt, generated, seed}).value();
}

// How often each token comes in n draws with successive seeds.
std::map<int32_t, int> histogram(const SamplingParams& params, const std::vector<float>& logits, int n) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sample(params, logits, {}, static_cast<uint64_t>(i))];
  return counts;
}

TEST(Sampler, greedy_takes_the_lowest_of_equals) { EXPECT_EQ(sample({}, {1, 3, 3, 2}), 1); }

TEST(Sampler, temperature_draws_follow_softmax) {
  const auto counts = histogram({.temperature = 2}, {0, 2 * std::log(3.0f), -kInf, 0}, 20000);
  // Weights 1 : 3 : 0 : 1; 20,000 draws have a standard deviation below 70.
  EXPECT_NEAR(counts.at(1), 12000, 350);
  EXPECT_NEAR(counts.at(0), 4000, 350);
  EXPECT_FALSE(counts.contains(2));
}

TEST(Sampler, top_k_top_p_min_p_cut_the_tail) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  EXPECT_EQ(histogram({.temperature = 1, .top_k = 2}, logits, 500).size(), 2u);
  EXPECT_EQ(histogram({.temperature = 1, .top_k = 1}, logits, 50).size(), 1u);
  EXPECT_EQ(histogram({.temperature = 1, .top_p = 0.65f}, logits, 500).size(), 2u);  // 0.4 + 0.3 reach it
  EXPECT_EQ(histogram({.temperature = 1, .top_p = 1e-6f}, logits, 50).size(), 1u);   // the best always stays
  EXPECT_EQ(histogram({.temperature = 1, .min_p = 0.45f}, logits, 500).size(), 3u);  // 0.2 >= 0.45 * 0.4
}

// The definition, with everything sorted: candidates best first, ties by id, cut by top_k, min_p, top_p, and a walk to the drawn share.
int32_t sample_by_definition(const SamplingParams& p, const std::vector<float>& logits, double uniform) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  if (p.top_k > 0 && p.top_k < static_cast<int32_t>(ids.size())) ids.resize(static_cast<size_t>(p.top_k));
  std::vector<double> weights;
  double total = 0, mass = 0;
  for (const int32_t id : ids) {
    const double w = std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) - logits[static_cast<size_t>(ids[0])]) / p.temperature);
    if (w < p.min_p || w == 0) break;
    weights.push_back(w);
    total += w;
  }
  size_t keep = weights.size();
  if (p.top_p < 1) {
    for (keep = 0; keep < weights.size() && mass < p.top_p * total; ++keep) mass += weights[keep];
    total = mass;
  }
  double target = uniform * total;
  for (size_t i = 0; i < keep; ++i) {
    if ((target -= weights[i]) < 0) return ids[i];
  }
  return ids[keep - 1];
}

// The first draw's uniform number: two rounds of splitmix64's finaliser.
double uniform_of(uint64_t seed) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  return static_cast<double>(mix(mix(seed) + 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

TEST(Sampler, draws_follow_the_definition_on_large_vocabularies) {
  const std::vector<SamplingParams> params = {{.temperature = 1},
                                              {.temperature = 1.5f, .top_p = 0.9f},
                                              {.temperature = 0.3f, .top_k = 700},
                                              {.temperature = 1, .min_p = 0.05f},
                                              {.temperature = 2, .top_p = 0.999f, .top_k = 5000, .min_p = 1e-4f},
                                              {.temperature = 100}};
  for (const float spread : {0.0f, 0.5f, 3.0f, 12.0f}) {
    std::vector<float> logits(20011);
    uint64_t state = 7;
    for (float& l : logits) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      l = std::round(spread * static_cast<float>(state >> 40) / (1 << 20)) / 4;  // with many ties
    }
    logits[5] = -kInf;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const double uniform = uniform_of(seed);
      for (size_t i = 0; i < params.size(); ++i)
        EXPECT_EQ(sample(params[i], logits, {}, seed), sample_by_definition(params[i], logits, uniform))
            << "spread " << spread << " params " << i << " seed " << seed;
    }
  }
}

TEST(Sampler, penalties) {
  EXPECT_EQ(sample({.repetition_penalty = 2}, {3, 2}, {}, 1, {0}), 1);       // 3 / 2 < 2
  EXPECT_EQ(sample({.repetition_penalty = 2}, {-1, -1.5f}, {0}), 1);         // -1 * 2 < -1.5
  EXPECT_EQ(sample({.frequency_penalty = 0.4f}, {3, 2.3f}, {0}), 0);         // once: 2.6
  EXPECT_EQ(sample({.frequency_penalty = 0.4f}, {3, 2.3f}, {0, 0}), 1);      // twice: 2.2
  EXPECT_EQ(sample({.presence_penalty = 0.6f}, {3, 2.3f}, {0, 0, 0}), 0);    // once, however often
  EXPECT_EQ(sample({.presence_penalty = 0.8f}, {3, 2.3f}, {0}, 1, {1}), 1);  // the prompt does not count
  EXPECT_EQ(sample({.logit_bias = {{2, 100.0f}}}, {3, 2, -50}), 2);
}

TEST(Sampler, a_draw_depends_on_seed_and_index_alone) {
  const std::vector<float> logits(64, 0.0f);
  const SamplingParams p{.temperature = 1};
  EXPECT_EQ(sample(p, logits, {5, 6}, 9), sample(p, logits, {7, 8}, 9));
  int differing = 0;
  for (int32_t i = 0; i < 32; ++i)
    differing += sample(p, logits, std::vector<int32_t>(static_cast<size_t>(i)), 9) != sample(p, logits, std::vector<int32_t>(static_cast<size_t>(i + 1)), 9);
  EXPECT_GT(differing, 20);
}

TEST(Sampler, nan_and_impossible_rows_are_errors) {
  std::vector<float> logits = {0, NAN};
  EXPECT_EQ(sample_token({}, nullptr, {logits, {}, {}, 0}).status().message(), "logits: NaN at token 1");
  logits = {-kInf, -kInf};
  EXPECT_EQ(sample_token({}, nullptr, {logits, {}, {}, 0}).status().message(), "logits: no token is possible");
}

TEST(Sampler, logprobs_are_of_the_raw_row) {
  const LogprobRow row = logprobs_of(std::vector<float>{0, std::log(2.0f), 0, std::log(4.0f)}, 0, 3);
  EXPECT_NEAR(row.chosen.logprob, std::log(1.0 / 8), 1e-6);
  ASSERT_EQ(row.top.size(), 3u);
  EXPECT_EQ(row.top[0].token, 3);
  EXPECT_NEAR(row.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(row.top[2].token, 0);  // ties: the lowest id
}

TEST(Sampler, validate_lists_every_fault) {
  SamplingParams p;
  p.temperature = NAN;
  p.top_p = 0;
  p.logit_bias = {{7, 1}};
  EXPECT_EQ(validate(p, 4).message(),
            "temperature is nan, it must be between 0 and 100; top_p is 0, it must be above 0 and at most 1; logit_bias token is 7, it must be below the "
            "vocabulary's 4");
  EXPECT_TRUE(validate({}, 4).ok());
}

}  // namespace
}  // namespace dsv4
