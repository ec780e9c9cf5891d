#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using HcPre = ReferenceOps;

// Two streams of two values; fn picks single entries of f, so that every mix is an entry of f over its root mean square.
TEST_F(HcPre, by_hand_with_one_iteration) {
  const std::vector<float> h = {1, -1, 2, 0};
  const double root = std::sqrt(6.0 / 4);
  std::vector<float> fn(8 * 4, 0.0f);
  const std::vector<int> picks = {0, 1, 2, 3, 0, 1, 2, 0};
  for (size_t i = 0; i < 8; ++i) fn[4 * i + static_cast<size_t>(picks[i])] = 1;
  const std::vector<float> base = {0.1f, 0.2f, 0.3f, 0.4f, 0, 0, 0.5f, 0}, scale = {2, 3, 0.5f};
  const std::vector<uint16_t> norm = bf16({1, 2});
  std::vector<float> x(2), post(2), comb(4);
  HcPreArgs a{matrix(h, 1, 4), matrix(fn, 8, 4), base.data(), scale.data(), norm.data(), 2, 1, 0, 0, matrix(x, 1, 2), matrix(post, 1, 2), matrix(comb, 1, 4)};
  ASSERT_TRUE(run(ops().hc_pre, a).ok());
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  const auto mix = [&](size_t i) { return h[static_cast<size_t>(picks[i])] / root; };
  EXPECT_NEAR(post[0], 2 * sigmoid(mix(2) * 3 + base[2]), 1e-6);
  EXPECT_NEAR(post[1], 2 * sigmoid(mix(3) * 3 + base[3]), 1e-6);
  const double p0 = sigmoid(mix(0) * 2 + base[0]), p1 = sigmoid(mix(1) * 2 + base[1]);
  const double x0 = p0 * h[0] + p1 * h[2], x1 = p0 * h[1] + p1 * h[3], r = std::sqrt((x0 * x0 + x1 * x1) / 2);
  EXPECT_NEAR(x[0], x0 / r, 1e-6);
  EXPECT_NEAR(x[1], 2 * x1 / r, 1e-6);
  // softmax over rows, then columns divided by their sums
  double c[2][2];
  for (size_t j = 0; j < 2; ++j) {
    const double e0 = std::exp(mix(4 + 2 * j) * 0.5 + base[4 + 2 * j]), e1 = std::exp(mix(5 + 2 * j) * 0.5 + base[5 + 2 * j]);
    c[j][0] = e0 / (e0 + e1);
    c[j][1] = e1 / (e0 + e1);
  }
  for (size_t j = 0; j < 2; ++j) {
    for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(comb[2 * j + k], c[j][k] / (c[0][k] + c[1][k]), 1e-6);
  }
}

TEST_F(HcPre, many_iterations_make_a_doubly_stochastic_matrix) {
  const std::vector<float> h(8, 1.0f), scale = {1, 1, 1};
  const std::vector<float> fn(24 * 8, 0.0f);
  std::vector<float> base(24);
  for (size_t i = 0; i < 24; ++i) base[i] = static_cast<float>(i * i % 7) * 0.3f;
  const std::vector<uint16_t> norm = bf16({1, 1});
  std::vector<float> x(2), post(4), comb(16);
  ASSERT_TRUE(run(ops().hc_pre, HcPreArgs{matrix(h, 1, 8), matrix(fn, 24, 8), base.data(), scale.data(), norm.data(), 4, 20, 1e-6f, 1e-6f, matrix(x, 1, 2),
                                          matrix(post, 1, 4), matrix(comb, 1, 16)})
                  .ok());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(comb[4 * i] + comb[4 * i + 1] + comb[4 * i + 2] + comb[4 * i + 3], 1, 1e-4) << "row " << i;
    EXPECT_NEAR(comb[i] + comb[4 + i] + comb[8 + i] + comb[12 + i], 1, 3e-6) << "column " << i;
  }
}

TEST_F(HcPre, refuses_bad_arguments) {
  const std::vector<float> f(1000);
  std::vector<float> x(1000), post(1000), comb(1000);
  const std::vector<uint16_t> norm(100);
  const HcPreArgs good{matrix(f, 3, 8), matrix(f, 24, 8),   f.data(),           f.data(), norm.data(), 4, 20, 0, 0,
                       matrix(x, 3, 2), matrix(post, 3, 4), matrix(comb, 3, 16)};
  ASSERT_TRUE(check(good).ok());
  HcPreArgs a = good;
  a.streams = 9;
  expect_refused(check(a), "hc_pre: 9 streams, 1 to 8 are supported");
  a = good;
  a.sinkhorn_iters = 0;
  expect_refused(check(a), "hc_pre: sinkhorn_iters is 0, at least 1 is needed");
  a = good;
  a.fn = matrix(f, 23, 8);
  expect_refused(check(a), "hc_pre: fn is [23, 8], expected [24, 8]");
  a = good;
  a.comb = matrix(comb, 3, 4);
  expect_refused(check(a), "hc_pre: comb is [3, 4], expected [3, 16]");
  a = good;
  a.post = matrix(post, 2, 4);
  expect_refused(check(a), "hc_pre: post is [2, 4], expected [3, 4]");
  a = good;
  a.norm = nullptr;
  expect_refused(check(a), "hc_pre: norm is missing");
}

}  // namespace
}  // namespace dsv4
