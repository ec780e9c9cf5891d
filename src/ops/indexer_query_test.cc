#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using IndexerQuery = ReferenceOps;

TEST_F(IndexerQuery, hadamard_is_the_matrix) {
  const int matrix4[4][4] = {{1, 1, 1, 1}, {1, -1, 1, -1}, {1, 1, -1, -1}, {1, -1, -1, 1}};
  for (size_t column = 0; column < 4; ++column) {
    float x[4] = {0, 0, 0, 0};
    x[column] = 1;
    hadamard_transform(x, 4);
    for (size_t row = 0; row < 4; ++row) EXPECT_EQ(x[row], 0.5f * static_cast<float>(matrix4[row][column])) << row << " " << column;
  }
}

TEST_F(IndexerQuery, hadamard_is_its_own_inverse_and_keeps_the_norm) {
  std::vector<float> x(128), y;
  for (size_t i = 0; i < 128; ++i) x[i] = static_cast<float>(i * i % 31) - 15;
  y = x;
  hadamard_transform(y.data(), 128);
  double before = 0, after = 0;
  for (size_t i = 0; i < 128; ++i) before += x[i] * x[i], after += y[i] * y[i];
  EXPECT_NEAR(after / before, 1, 1e-6);
  hadamard_transform(y.data(), 128);
  for (size_t i = 0; i < 128; ++i) EXPECT_NEAR(y[i], x[i], 1e-4);
}

TEST_F(IndexerQuery, rotates_transforms_and_rounds) {
  std::vector<float> q(32, 0.0f);
  const std::vector<float> turn = {0, 1};  // a quarter turn of the last pair
  q[30] = std::sqrt(32.0f) * 1.2f;         // goes to place 31, whose column of the matrix is (-1)^popcount(row & 31)
  ASSERT_TRUE(run(ops().indexer_query, IndexerQueryArgs{matrix(q, 1, 32), 1, matrix(turn, 1, 2), false}).ok());
  for (uint32_t i = 0; i < 32; ++i) EXPECT_NEAR(q[i], __builtin_popcount(i & 31) % 2 == 0 ? 1.2 : -1.2, 1e-5) << i;
  std::fill(q.begin(), q.end(), 0.0f);
  q[30] = std::sqrt(32.0f) * 1.2f;
  ASSERT_TRUE(run(ops().indexer_query, IndexerQueryArgs{matrix(q, 1, 32), 1, matrix(turn, 1, 2), true}).ok());
  // amax 1.2 / 6 = 0.2: scale 1/4; 4.8 lies between 4 and 6, nearer 4 (the middle is 5).
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(std::fabs(q[i]), 1) << i;
}

TEST_F(IndexerQuery, refuses_bad_shapes) {
  std::vector<float> q(96);
  const std::vector<float> turn(64);
  expect_refused(check(IndexerQueryArgs{matrix(q, 1, 96), 5, matrix(turn, 1, 2), true}), "indexer_query: 96 columns do not divide into 5 heads");
  expect_refused(check(IndexerQueryArgs{matrix(q, 1, 96), 1, matrix(turn, 1, 2), true}),
                 "indexer_query: head_dim is 96, a power of two of at least 32 is needed");
  expect_refused(check(IndexerQueryArgs{matrix(q, 1, 96), 3, matrix(turn, 1, 34), true}), "indexer_query: cannot rotate 34 of 32 values");
  expect_refused(check(IndexerQueryArgs{matrix(q, 1, 96), 3, matrix(turn, 2, 2), true}), "indexer_query: cos_sin is [2, 2], expected [1, 2]");
}

}  // namespace
}  // namespace dsv4
