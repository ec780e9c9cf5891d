#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using HcHead = ReferenceOps;

TEST_F(HcHead, by_hand) {
  const std::vector<float> h = {9, 9, 9, 9, 1, -1, 2, 0}, fn = {1, 0, 0, 0, 0, 0, 1, 0}, base = {0.5f, -0.5f}, scale = {2};
  const std::vector<int32_t> rows = {1, -1};
  const std::vector<uint16_t> norm = bf16({2, 1});
  std::vector<float> x(4, 7);
  ASSERT_TRUE(
      run(ops().hc_head, HcHeadArgs{matrix(h, 2, 4), {rows.data(), 2}, matrix(fn, 2, 4), base.data(), scale.data(), norm.data(), 0, 0, matrix(x, 2, 2)}).ok());
  const double root = std::sqrt(6.0 / 4), p0 = 1 / (1 + std::exp(-(1 / root * 2 + 0.5))), p1 = 1 / (1 + std::exp(-(2 / root * 2 - 0.5)));
  const double x0 = p0 * 1 + p1 * 2, x1 = -p0, r = std::sqrt((x0 * x0 + x1 * x1) / 2);
  EXPECT_NEAR(x[0], 2 * x0 / r, 1e-6);
  EXPECT_NEAR(x[1], x1 / r, 1e-6);
  EXPECT_EQ(x[2], 0);
  EXPECT_EQ(x[3], 0);
}

TEST_F(HcHead, refuses_bad_shapes) {
  const std::vector<float> f(100);
  const std::vector<int32_t> rows(2);
  const std::vector<uint16_t> norm(8);
  std::vector<float> x(100);
  const HcHeadArgs good{matrix(f, 3, 8), {rows.data(), 2}, matrix(f, 4, 8), f.data(), f.data(), norm.data(), 0, 0, matrix(x, 2, 2)};
  ASSERT_TRUE(check(good).ok());
  HcHeadArgs a = good;
  a.rows.size = 1;
  expect_refused(check(a), "hc_head: rows has 1 elements, expected 2");
  a = good;
  a.x = matrix(x, 2, 3);
  expect_refused(check(a), "hc_head: h is [3, 8], expected [3, 12]");
  a = good;
  a.scale = nullptr;
  expect_refused(check(a), "hc_head: scale is missing");
}

}  // namespace
}  // namespace dsv4
