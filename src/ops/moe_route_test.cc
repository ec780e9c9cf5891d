#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using MoeRoute = ReferenceOps;

double score(double x) { return std::sqrt(std::log1p(std::exp(x))); }

TEST_F(MoeRoute, bias_selects_and_does_not_weigh) {
  const std::vector<float> logits = {0, 1, 2, 3}, bias = {9, 0, 5, 0};
  const std::vector<int32_t> ids = {0};
  std::vector<int32_t> experts(2);
  std::vector<float> weights(2);
  ASSERT_TRUE(
      run(ops().moe_route, MoeRouteArgs{matrix(logits, 1, 4), bias.data(), nullptr, {ids.data(), 1}, 1.5f, matrix(experts, 1, 2), matrix(weights, 1, 2)}).ok());
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 2}));
  EXPECT_NEAR(weights[0], 1.5 * score(0) / (score(0) + score(2)), 1e-6);
  EXPECT_NEAR(weights[1], 1.5 * score(2) / (score(0) + score(2)), 1e-6);
}

TEST_F(MoeRoute, hash_layers_look_up_and_padding_has_none) {
  const std::vector<float> logits = {0, 1, 2, 3, 0, 0, 0, 0};
  const std::vector<int64_t> tid2eid = {0, 1, 3, 1};
  const std::vector<int32_t> ids = {1, -1};
  std::vector<int32_t> experts(4, 5);
  std::vector<float> weights(4, 5);
  ASSERT_TRUE(
      run(ops().moe_route, MoeRouteArgs{matrix(logits, 2, 4), nullptr, tid2eid.data(), {ids.data(), 2}, 1, matrix(experts, 2, 2), matrix(weights, 2, 2)}).ok());
  EXPECT_EQ(experts, (std::vector<int32_t>{3, 1, -1, -1}));
  EXPECT_NEAR(weights[0], score(3) / (score(3) + score(1)), 1e-6);
  EXPECT_EQ(weights[2], 0);
  EXPECT_EQ(weights[3], 0);
}

TEST_F(MoeRoute, large_logits_stay_finite_and_ties_go_to_the_lowest) {
  const std::vector<float> logits = {200, -100, 200, 50}, bias(4, 0.0f);
  const std::vector<int32_t> ids = {0};
  std::vector<int32_t> experts(4);
  std::vector<float> weights(4);
  ASSERT_TRUE(
      run(ops().moe_route, MoeRouteArgs{matrix(logits, 1, 4), bias.data(), nullptr, {ids.data(), 1}, 1, matrix(experts, 1, 4), matrix(weights, 1, 4)}).ok());
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 2, 3, 1}));
  const double sum = 2 * std::sqrt(200.0) + std::sqrt(50.0) + std::exp(-50.0);  // sqrt(softplus(x)) = sqrt(x), or e^(x/2) far below zero
  EXPECT_NEAR(weights[0], std::sqrt(200.0) / sum, 1e-6);
  EXPECT_NEAR(weights[2], std::sqrt(50.0) / sum, 1e-6);
  EXPECT_NEAR(weights[3] * sum / std::exp(-50.0), 1, 1e-5);
}

TEST_F(MoeRoute, refuses_bad_arguments) {
  const std::vector<float> f(100);
  const std::vector<int64_t> tid(100);
  const std::vector<int32_t> ids(100);
  std::vector<int32_t> experts(100);
  std::vector<float> weights(100);
  const MoeRouteArgs good{matrix(f, 2, 4), f.data(), nullptr, {ids.data(), 2}, 1, matrix(experts, 2, 3), matrix(weights, 2, 3)};
  ASSERT_TRUE(check(good).ok());
  MoeRouteArgs a = good;
  a.tid2eid = tid.data();
  expect_refused(check(a), "moe_route: exactly one of bias and tid2eid is needed");
  a.tid2eid = nullptr;
  a.bias = nullptr;
  expect_refused(check(a), "moe_route: exactly one of bias and tid2eid is needed");
  a = good;
  a.experts = matrix(experts, 2, 5);
  expect_refused(check(a), "moe_route: top-k is 5 of 4 experts");
  a = good;
  a.weights = matrix(weights, 2, 2);
  expect_refused(check(a), "moe_route: weights is [2, 2], expected [2, 3]");
  a = good;
  a.token_ids.size = 3;
  expect_refused(check(a), "moe_route: token_ids has 3 elements, expected 2");
}

}  // namespace
}  // namespace dsv4
