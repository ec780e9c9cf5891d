#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using Linear = ReferenceOps;

TEST_F(Linear, f32_by_hand) {
  const std::vector<float> x = {1, 2, 3, 4}, w = {1, 0, 0, 1, 1, 1};
  std::vector<float> y(6);
  LinearArgs a{matrix(x, 2, 2), ActivationRounding::kE4M3, 1, {}};  // f32 weights: no rounding, any k
  a.jobs[0] = {f32_weight(w, 3, 2), matrix(y, 2, 3)};
  ASSERT_TRUE(run(ops().linear, a).ok());
  EXPECT_EQ(y, (std::vector<float>{1, 2, 3, 3, 4, 7}));
}

// k = 256 and n = 129 span a 2 x 2 grid of scales: 1, 2, 4, 8.
TEST_F(Linear, fp8_scale_grid_is_row_block_by_column_block) {
  std::vector<uint8_t> w(129 * 256, float_to_e4m3(1.0f));
  const std::vector<uint8_t> scale = {127, 128, 129, 130};
  std::vector<float> x(256, 0.0f), y(129);
  x[0] = 1;     // column block 0
  x[200] = 10;  // column block 1
  LinearArgs a{matrix(x, 1, 256), ActivationRounding::kNone, 1, {}};
  a.jobs[0] = {{WeightFormat::kFp8Block, w.data(), scale.data(), 129, 256}, matrix(y, 1, 129)};
  ASSERT_TRUE(run(ops().linear, a).ok());
  EXPECT_EQ(y[0], 1 * 1 + 10 * 2);
  EXPECT_EQ(y[127], 1 * 1 + 10 * 2);
  EXPECT_EQ(y[128], 1 * 4 + 10 * 8);
}

TEST_F(Linear, mxfp4_low_nibble_is_the_even_column) {
  std::vector<uint8_t> w(32);  // two rows of 64
  w[0] = 0x21;                 // columns 0, 1 = 0.5, 1
  w[16] = 0x0f;                // column 32 = -6
  std::vector<uint8_t> w2 = w;
  std::vector<uint8_t> scale = {127, 126, 130, 127};
  w.insert(w.end(), w2.begin(), w2.end());
  w.resize(64);
  std::vector<float> x(64, 0.0f), y(2);
  x[0] = 1;
  x[1] = 10;
  x[32] = 100;
  LinearArgs a{matrix(x, 1, 64), ActivationRounding::kNone, 1, {}};
  a.jobs[0] = {{WeightFormat::kMxfp4, w.data(), scale.data(), 2, 64}, matrix(y, 1, 2)};
  ASSERT_TRUE(run(ops().linear, a).ok());
  EXPECT_EQ(y[0], 0.5f + 10 - 300);  // scales 1 and 1/2
  EXPECT_EQ(y[1], 4 + 80 - 600);     // scales 8 and 1
}

TEST_F(Linear, activations_round_to_e4m3_per_128) {
  std::vector<uint8_t> w(256, 0);
  std::vector<uint8_t> scale = {127, 127};
  std::vector<float> x(256, 0.0f), y(1);
  LinearArgs a{matrix(x, 1, 256), ActivationRounding::kE4M3, 1, {}};
  a.jobs[0] = {{WeightFormat::kFp8Block, w.data(), scale.data(), 1, 256}, matrix(y, 1, 1)};
  w[0] = w[128] = float_to_e4m3(1.0f);
  x[0] = x[128] = 17;  // between codes 16 and 18: a tie, the even one is 16
  x[1] = 448;          // amax: scale 1 in the first group
  x[129] = 449;        // scale 2 in the second: 8.5 is between 8 and 9, again the even one, 8 * 2
  ASSERT_TRUE(run(ops().linear, a).ok());
  EXPECT_EQ(y[0], 16 + 16);
  x[0] = x[128] = 17.001f;
  ASSERT_TRUE(run(ops().linear, a).ok());
  EXPECT_EQ(y[0], 18 + 18);
  x[1] = x[129] = 0;  // now the amax: scale 2^-4, and 272.016 is nearer 288 than 256
  ASSERT_TRUE(run(ops().linear, a).ok());
  EXPECT_EQ(y[0], 18 + 18);
}

TEST_F(Linear, refuses_bad_arguments) {
  const std::vector<float> x(400), w(400);
  std::vector<float> y(400);
  LinearArgs a{matrix(x, 2, 100), ActivationRounding::kNone, 1, {}};
  a.jobs[0] = {f32_weight(w, 3, 100), matrix(y, 2, 3)};
  ASSERT_TRUE(check(a).ok());
  LinearArgs b = a;
  b.num_jobs = 0;
  expect_refused(check(b), "linear: 0 jobs, 1 to 8 are supported");
  b.num_jobs = 9;
  expect_refused(check(b), "linear: 9 jobs, 1 to 8 are supported");
  b = a;
  b.jobs[0].y = matrix(y, 2, 4);
  expect_refused(check(b), "linear: weight is [3, 100], expected [4, 100]");
  b = a;
  b.jobs[0].y = matrix(y, 1, 3);
  expect_refused(check(b), "linear: y is [1, 3], expected [2, 3]");
  b = a;
  b.jobs[0].weight.data = nullptr;
  expect_refused(check(b), "linear: weight has no data");
  b = a;
  b.rounding = ActivationRounding::kE4M3;
  b.jobs[0].weight.format = WeightFormat::kFp8Block;
  expect_refused(check(b), "linear: a fp8_block weight needs scales");
  b.jobs[0].weight.scale = reinterpret_cast<const uint8_t*>(w.data());
  expect_refused(check(b), "linear: k is 100, rounded activations need a multiple of 128");
}

}  // namespace
}  // namespace dsv4
