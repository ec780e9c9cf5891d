#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using RmsNorm = ReferenceOps;

TEST_F(RmsNorm, by_hand) {
  const std::vector<float> x = {3, 4, 0, 0, -6, 8};
  const std::vector<uint16_t> w = bf16({1, 2});
  std::vector<float> out(6);
  ASSERT_TRUE(run(ops().rms_norm, RmsNormArgs{matrix(x, 3, 2), w.data(), 0.5f, matrix(out, 3, 2)}).ok());
  EXPECT_FLOAT_EQ(out[0], 3 / std::sqrt(13.0f));  // mean square 12.5, + eps
  EXPECT_FLOAT_EQ(out[1], 8 / std::sqrt(13.0f));
  EXPECT_EQ(out[2], 0);
  EXPECT_FLOAT_EQ(out[4], -6 / std::sqrt(50.5f));
  EXPECT_FLOAT_EQ(out[5], 16 / std::sqrt(50.5f));
}

TEST_F(RmsNorm, refuses_bad_shapes) {
  const std::vector<float> x(6);
  std::vector<float> out(6);
  const std::vector<uint16_t> w(3);
  expect_refused(check(RmsNormArgs{matrix(x, 2, 3), nullptr, 0, matrix(out, 2, 3)}), "rms_norm: weight is missing");
  expect_refused(check(RmsNormArgs{matrix(x, 2, 3), w.data(), 0, matrix(out, 3, 2)}), "rms_norm: out is [3, 2], expected [2, 3]");
}

}  // namespace
}  // namespace dsv4
