#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using Swiglu = ReferenceOps;

TEST_F(Swiglu, by_hand) {
  const std::vector<float> gate = {0, 1, 20, -20, 2}, up = {5, 3, -20, 20, -3};
  std::vector<float> out(5);
  ASSERT_TRUE(run(ops().swiglu, SwigluArgs{matrix(gate, 1, 5), matrix(up, 1, 5), 10, matrix(out, 1, 5)}).ok());
  EXPECT_EQ(out[0], 0);
  EXPECT_FLOAT_EQ(out[1], 3 / (1 + std::exp(-1.0f)));
  EXPECT_FLOAT_EQ(out[2], -100 / (1 + std::exp(-10.0f)));  // both cut to 10
  EXPECT_FLOAT_EQ(out[3], -200 / (1 + std::exp(20.0f)));   // the gate is not cut below, up is
  EXPECT_FLOAT_EQ(out[4], -6 / (1 + std::exp(-2.0f)));
}

TEST_F(Swiglu, refuses_bad_arguments) {
  const std::vector<float> v(6);
  std::vector<float> out(6);
  expect_refused(check(SwigluArgs{matrix(v, 2, 3), matrix(v, 3, 2), 1, matrix(out, 2, 3)}), "swiglu: up is [3, 2], expected [2, 3]");
  expect_refused(check(SwigluArgs{matrix(v, 2, 3), matrix(v, 2, 3), 1, matrix(out, 1, 6)}), "swiglu: out is [1, 6], expected [2, 3]");
  expect_refused(check(SwigluArgs{matrix(v, 2, 3), matrix(v, 2, 3), 0, matrix(out, 2, 3)}), "swiglu: limit is 0.000000, it must be positive");
  EXPECT_FALSE(check(SwigluArgs{matrix(v, 2, 3), matrix(v, 2, 3), std::nanf(""), matrix(out, 2, 3)}).ok());
}

}  // namespace
}  // namespace dsv4
