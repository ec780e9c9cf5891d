#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using GroupedLinear = ReferenceOps;

TEST_F(GroupedLinear, by_hand) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};   // two rows, two groups of two
  const std::vector<float> w = {1, 0, 1, 1, 0, 2, 1, -1};  // group 0: rows 0, 1; group 1: rows 2, 3
  std::vector<float> y(8);
  ASSERT_TRUE(run(ops().grouped_linear, GroupedLinearArgs{matrix(x, 2, 4), f32_weight(w, 4, 2), 2, matrix(y, 2, 4)}).ok());
  EXPECT_EQ(y, (std::vector<float>{1, 3, 8, -1, 5, 11, 16, -1}));
}

TEST_F(GroupedLinear, refuses_bad_shapes) {
  const std::vector<float> x(100), w(100);
  std::vector<float> y(100);
  expect_refused(check(GroupedLinearArgs{matrix(x, 2, 6), f32_weight(w, 4, 2), 3, matrix(y, 2, 4)}), "grouped_linear: 4 rows do not divide into 3 groups");
  expect_refused(check(GroupedLinearArgs{matrix(x, 2, 6), f32_weight(w, 4, 2), 2, matrix(y, 2, 4)}), "grouped_linear: x is [2, 6], expected [2, 4]");
  expect_refused(check(GroupedLinearArgs{matrix(x, 2, 4), f32_weight(w, 4, 2), 2, matrix(y, 2, 2)}), "grouped_linear: y is [2, 2], expected [2, 4]");
}

}  // namespace
}  // namespace dsv4
