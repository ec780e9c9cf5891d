#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using RopeTable = ReferenceOps;

TEST_F(RopeTable, plain_frequencies) {
  std::vector<float> f(32);
  rope_frequencies(64, 10000, nullptr, f.data());
  EXPECT_EQ(f[0], 1);
  EXPECT_FLOAT_EQ(f[1], 0.7498942093324559f);
  EXPECT_FLOAT_EQ(f[16], 0.01f);
  EXPECT_FLOAT_EQ(f[31], 0.0001333521432163324f);
}

// Published configuration: base 160000, factor 16, 65536 positions, beta 32 and 1. The blend runs over i = 15 .. 25: below it the
// frequency is untouched, above it is a sixteenth.
TEST_F(RopeTable, yarn_frequencies_of_the_published_model) {
  std::vector<float> plain(32), yarn(32);
  const YarnScaling scaling{16, 65536, 32, 1};
  rope_frequencies(64, 160000, nullptr, plain.data());
  rope_frequencies(64, 160000, &scaling, yarn.data());
  for (size_t i = 0; i <= 15; ++i) EXPECT_FLOAT_EQ(yarn[i], plain[i]) << i;
  for (size_t i = 25; i < 32; ++i) EXPECT_FLOAT_EQ(yarn[i], plain[i] / 16) << i;
  EXPECT_FLOAT_EQ(yarn[16], 0.0022656250f);  // 0.0025 * (0.9 + 0.1 / 16)
  EXPECT_FLOAT_EQ(yarn[20], 0.00029697777826169085f);
  EXPECT_FLOAT_EQ(yarn[24], 1.953125e-05f);
}

TEST_F(RopeTable, by_hand) {
  const std::vector<int32_t> positions = {0, 3, -1, 1000000};
  const std::vector<float> freqs = {1.0f, 0.1f};
  std::vector<float> out(16);
  ASSERT_TRUE(run(ops().rope_table, RopeTableArgs{{positions.data(), 4}, -1, {freqs.data(), 2}, matrix(out, 4, 4)}).ok());
  for (const size_t row : {0, 2}) {  // before position 0, and padding: the identity
    EXPECT_EQ(out[4 * row], 1);
    EXPECT_EQ(out[4 * row + 1], 0);
  }
  EXPECT_FLOAT_EQ(out[4], std::cos(2.0f));
  EXPECT_FLOAT_EQ(out[5], std::sin(2.0f));
  EXPECT_FLOAT_EQ(out[6], std::cos(0.2f));
  const double rounded = 999999.0f * 0.1f;  // the angle is a float32 before the cosine sees it
  EXPECT_NEAR(out[14], std::cos(static_cast<double>(static_cast<float>(rounded))), 1e-6);
}

TEST_F(RopeTable, refuses_bad_shapes) {
  const std::vector<int32_t> positions(2);
  const std::vector<float> freqs(2);
  std::vector<float> out(16);
  expect_refused(check(RopeTableArgs{{positions.data(), 2}, 0, {freqs.data(), 2}, matrix(out, 2, 6)}), "rope_table: out is [2, 6], expected [2, 4]");
}

}  // namespace
}  // namespace dsv4
