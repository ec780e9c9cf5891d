#include "verify/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace dsv4 {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

TEST(Numbers, relative_error) {
  const std::vector<float> a{3, 4}, b{3, 4.5f}, zero{0, 0};
  EXPECT_EQ(relative_error(a, a), 0);
  EXPECT_DOUBLE_EQ(relative_error(b, a), 0.1);
  EXPECT_EQ(relative_error(zero, zero), 0);
  EXPECT_TRUE(std::isinf(relative_error(a, zero)));
  EXPECT_DOUBLE_EQ(relative_error(zero, a), 1) << "zeros are no answer";
  EXPECT_TRUE(std::isinf(relative_error(a, std::vector<float>{3})));
  const std::vector<float> bad{kNan, 4};
  EXPECT_FALSE(relative_error(bad, a) <= 1e30);
  EXPECT_FALSE(relative_error(bad, bad) <= 1e30) << "a NaN equals nothing, itself included";
}

TEST(Numbers, cosine) {
  const std::vector<float> a{1, 0}, b{0, 2}, c{-3, 0};
  EXPECT_DOUBLE_EQ(cosine(a, a), 1);
  EXPECT_DOUBLE_EQ(cosine(a, b), 0);
  EXPECT_DOUBLE_EQ(cosine(a, c), -1);
  EXPECT_EQ(cosine(a, std::vector<float>{0, 0}), 0);
}

TEST(Numbers, argmax) {
  EXPECT_EQ(argmax_of(std::vector<float>{1, 3, 3}), 1) << "the lowest of equals";
  EXPECT_EQ(argmax_of(std::vector<float>{kNan, -5}), 1);
  EXPECT_EQ(argmax_of(std::vector<float>{}), -1);
  EXPECT_EQ(argmax_of(std::vector<float>{-kInf, -kInf}), 0);
}

TEST(Numbers, quantiles) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({1, 2, 3, 4}), 2.5);
  EXPECT_DOUBLE_EQ(quantile({10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110}, 0.1), 20);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_TRUE(std::isnan(median({1, static_cast<double>(kNan), 2})));
  EXPECT_EQ(quantile({1, static_cast<double>(kInf)}, 0), 1);
}

TEST(Numbers, log_sum_exp_and_kl) {
  const std::vector<float> a{1000, 1000}, b{0, std::log(3.0f)};
  EXPECT_NEAR(log_sum_exp(a), 1000 + std::log(2.0), 1e-9);
  EXPECT_NEAR(log_sum_exp(b), std::log(4.0), 1e-6);
  EXPECT_NEAR(kl_divergence(b, b), 0, 1e-12);
  // (1/2, 1/2) from (1/4, 3/4): 0.5 ln 2 + 0.5 ln (2/3).
  EXPECT_NEAR(kl_divergence(a, b), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-6);
  EXPECT_TRUE(std::isinf(kl_divergence(a, std::vector<float>{1})));
}

}  // namespace
}  // namespace dsv4
