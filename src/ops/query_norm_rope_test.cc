#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using QueryNormRope = ReferenceOps;

TEST_F(QueryNormRope, by_hand) {
  std::vector<float> q = {1, 1, 3, 4, 0, 0, 0, 2};  // two heads of four; the last two values rotate
  const std::vector<float> turn = {0.6f, 0.8f};
  ASSERT_TRUE(run(ops().query_norm_rope, QueryNormRopeArgs{matrix(q, 1, 8), 2, matrix(turn, 1, 2), 0}).ok());
  const double r = std::sqrt(27.0 / 4);
  EXPECT_NEAR(q[0], 1 / r, 1e-6);
  EXPECT_NEAR(q[2], (3 * 0.6 - 4 * 0.8) / r, 1e-6);
  EXPECT_NEAR(q[3], (3 * 0.8 + 4 * 0.6) / r, 1e-6);
  EXPECT_NEAR(q[6], -2 * 0.8, 1e-6);
  EXPECT_NEAR(q[7], 2 * 0.6, 1e-6);
}

TEST_F(QueryNormRope, refuses_bad_shapes) {
  std::vector<float> q(24);
  const std::vector<float> turn(24);
  expect_refused(check(QueryNormRopeArgs{matrix(q, 2, 8), 3, matrix(turn, 2, 2), 0}), "query_norm_rope: 8 columns do not divide into 3 heads");
  expect_refused(check(QueryNormRopeArgs{matrix(q, 2, 8), 2, matrix(turn, 2, 6), 0}), "query_norm_rope: cannot rotate 6 of 4 values");
  expect_refused(check(QueryNormRopeArgs{matrix(q, 2, 8), 2, matrix(turn, 2, 3), 0}), "query_norm_rope: cannot rotate 3 of 4 values");
  expect_refused(check(QueryNormRopeArgs{matrix(q, 2, 8), 2, matrix(turn, 3, 2), 0}), "query_norm_rope: cos_sin is [3, 2], expected [2, 2]");
}

}  // namespace
}  // namespace dsv4
