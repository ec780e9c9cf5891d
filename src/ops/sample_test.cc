#include "ops/sample.h"

#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using SampleOp = ReferenceOps;

TEST(SampleWeight, is_the_exponential_to_within_one) {
  for (int i = 0; i <= 100000; ++i) {
    const float logit = -29.0f * static_cast<float>(i) / 100000;
    const double want = std::ldexp(std::exp(static_cast<double>(logit)), kSampleWeightBits);
    EXPECT_NEAR(static_cast<double>(sample_weight(logit, 0, 1)), want, 1.01) << logit;
  }
  EXPECT_EQ(sample_weight(5, 5, 0.01), uint64_t{1} << kSampleWeightBits);
  EXPECT_EQ(sample_weight(-INFINITY, 5, 1), 0u);
  EXPECT_EQ(sample_weight(-28.5f, 0, 1), 0u);
  EXPECT_EQ(sample_weight(4, 6, 0.5), sample_weight(1, 2, 1));
}

TEST_F(SampleOp, by_hand) {
  // Weights 4 : 2 : 1 : 1 of the largest's 2^40.
  const float two = std::log(2.0f);
  const std::vector<float> row = {two, 2 * two, 0, 0}, logits = [&] {
    std::vector<float> all;
    for (int i = 0; i < 8; ++i) all.insert(all.end(), row.begin(), row.end());
    return all;
  }();
  const auto share = [](double u) { return static_cast<int64_t>(std::ldexp(u, 53)); };
  const std::vector<Draw> draws = {{.temperature = 1, .random = share(0.49)},                 // 4 / 8
                                   {.temperature = 1, .random = share(0.51)},                 // 2 / 8
                                   {.temperature = 1, .random = share(0.76)},                 // the first of the equals
                                   {.temperature = 1, .random = share(0.99)},                 // the second
                                   {.temperature = 1, .top_k = 2, .random = share(0.99)},     // 4 : 2
                                   {.temperature = 1, .top_p = 0.5f, .random = share(0.99)},  // the best alone reaches it
                                   {.temperature = 1, .min_p = 0.4f, .random = share(0.99)},  // a quarter does not
                                   {.temperature = 0, .random = share(0.99)}};
  std::vector<int32_t> ids(8, 1);
  ASSERT_TRUE(run(ops().sample, SampleArgs{matrix(logits, 8, 4), draws.data(), {ids.data(), 8}}).ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 0, 2, 3, 0, 1, 0, 1}));
}

TEST_F(SampleOp, refuses_bad_shapes) {
  const std::vector<float> logits(6);
  const std::vector<Draw> draws(2);
  std::vector<int32_t> ids(4);
  expect_refused(check(SampleArgs{matrix(logits, 2, 3), draws.data(), {ids.data(), 4}}), "sample: ids has 4 elements, expected 2");
  expect_refused(check(SampleArgs{matrix(logits, 2, 3), nullptr, {ids.data(), 2}}), "sample: draws is missing");
  expect_refused(check(SampleArgs{matrix(logits, 2, 0), draws.data(), {ids.data(), 2}}), "sample: the logits have 0 columns, it must be 1 to 262144");
}

}  // namespace
}  // namespace dsv4
