#include <cmath>

#include "cache/paged_rows.h"
#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

// Rows of two values that do not rotate (rope_dim 0), norm weight 1: a row is c / rms(c), so ratios of values tell the mean.
class CompressorStep : public ReferenceOps {
 protected:
  std::vector<uint16_t> norm = bf16({1, 1});
  std::vector<int32_t> ids = {0};
  std::vector<float> cache = std::vector<float>(64 * 2, -1), state = std::vector<float>(2 * 3 * 2, NAN), turn = std::vector<float>(1);
  std::vector<int32_t> positions, slots, cu = {0, 0}, seq_slots = {0};

  CompressorStepArgs args(int32_t ratio, const std::vector<float>& kv, const std::vector<float>& gate, const std::vector<float>& ape, int32_t first) {
    const int64_t width = ratio == 4 ? 4 : 2, rows = static_cast<int64_t>(kv.size()) / width;
    positions.clear();
    for (int32_t i = 0; i < rows; ++i) positions.push_back(first + i);
    slots.assign(positions.size(), 0);
    cu[1] = static_cast<int32_t>(rows);
    CompressorStepArgs a;
    a.kv = {kv.data(), rows, width};
    a.gate = {gate.data(), rows, width};
    a.ape = ape.data();
    a.norm = norm.data();
    a.eps = 0;
    a.ratio = ratio;
    a.head_dim = 2;
    a.cos_sin = {turn.data(), rows, 0, 0};
    a.rows = {positions.data(), slots.data(), cu.data(), seq_slots.data(), rows, 1};
    a.state = state.data();
    a.rounding = CacheRounding::kNone;
    a.out = {RowFormat::kF32, reinterpret_cast<uint8_t*>(cache.data()), 64 * 2 * 4, 64, 2};
    a.table = {ids.data(), 1};
    return a;
  }
  double ratio_of_row(int j) const { return double{cache[static_cast<size_t>(2 * j + 1)]} / double{cache[static_cast<size_t>(2 * j)]}; }
};

TEST_F(CompressorStep, ratio_128_is_the_weighted_mean_of_its_window) {
  std::vector<float> kv, gate;
  const std::vector<float> ape(128 * 2, 0.25f);
  double sum[2] = {0, 0}, weights[2] = {0, 0};
  for (int t = 0; t < 128; ++t) {
    for (int d = 0; d < 2; ++d) {
      kv.push_back(static_cast<float>((t * 7 + d * 3) % 11) + 1);
      gate.push_back(static_cast<float>((t * 5 + d) % 13) * 0.2f);
      sum[d] += std::exp(double{gate.back()}) * kv.back();
      weights[d] += std::exp(double{gate.back()});
    }
  }
  ASSERT_TRUE(run(ops().compressor_step, args(128, kv, gate, ape, 0)).ok());
  EXPECT_NEAR(ratio_of_row(0), sum[1] / weights[1] / (sum[0] / weights[0]), 1e-5);
  EXPECT_EQ(cache[2], -1) << "one row only";
}

TEST_F(CompressorStep, ratio_4_overlaps_first_halves_of_the_window_before) {
  // Equal gates: plain means. First halves are columns 0, 1; second halves 2, 3.
  std::vector<float> kv, gate(8 * 4, 0.0f);
  const std::vector<float> ape(4 * 4, 0.0f);
  for (int t = 0; t < 8; ++t) kv.insert(kv.end(), {1.0f + static_cast<float>(t), 2, 10, 20.0f * static_cast<float>(t + 1)});
  ASSERT_TRUE(run(ops().compressor_step, args(4, kv, gate, ape, 0)).ok());
  EXPECT_NEAR(ratio_of_row(0), (20 + 40 + 60 + 80) / 4.0 / 10, 1e-5) << "window 0 has no predecessor";
  const double mean0 = (1 + 2 + 3 + 4 + 4 * 10) / 8.0, mean1 = (4 * 2 + 100 + 120 + 140 + 160) / 8.0;
  EXPECT_NEAR(ratio_of_row(1), mean1 / mean0, 1e-5);
  EXPECT_EQ(cache[4], -1);
}

TEST_F(CompressorStep, ape_belongs_to_the_place_in_the_window) {
  // One token's ape is so large that it takes the whole window.
  const std::vector<float> kv = {0, 0, 1, 1, 0, 0, 2, 6, 0, 0, 3, 9, 0, 0, 4, 4}, gate(16, 0.0f);
  std::vector<float> ape(16, 0.0f);
  ape[4 + 2] = ape[4 + 3] = 60;
  ASSERT_TRUE(run(ops().compressor_step, args(4, kv, gate, ape, 0)).ok());
  EXPECT_NEAR(ratio_of_row(0), 3, 1e-5);
}

TEST_F(CompressorStep, state_holds_maximum_sum_and_weighted_sum) {
  const std::vector<float> kv = {5, 1, 7, 1}, gate = {2, 0, 3, 0}, ape(128 * 2, 0.0f);
  ASSERT_TRUE(run(ops().compressor_step, args(128, kv, gate, ape, 0)).ok());
  EXPECT_EQ(state[0], 3);
  EXPECT_NEAR(state[2], 1 + std::exp(-1.0), 1e-6);
  EXPECT_NEAR(state[4], 7 + 5 * std::exp(-1.0), 1e-6);
  EXPECT_EQ(cache[0], -1);
}

TEST_F(CompressorStep, refuses_bad_arguments) {
  const std::vector<float> v(4 * 4), ape(128 * 4);
  CompressorStepArgs a = args(4, v, v, ape, 0);
  ASSERT_TRUE(check(a).ok());
  a.ratio = 8;
  expect_refused(check(a), "compressor_step: ratio is 8, 4 or 128 is supported");
  a = args(4, v, v, ape, 0);
  a.kv.cols = 2;
  expect_refused(check(a), "compressor_step: kv is [4, 2], expected [4, 4]");
  a = args(4, v, v, ape, 0);
  a.state = nullptr;
  expect_refused(check(a), "compressor_step: state is missing");
  a = args(4, v, v, ape, 0);
  a.out.row_dim = 3;
  a.out.block_stride_bytes = 64 * 12;
  expect_refused(check(a), "compressor_step: out rows has 3 elements, expected 2");
  a = args(4, v, v, ape, 0);
  a.cos_sin.cols = 4;
  expect_refused(check(a), "compressor_step: cannot rotate 4 of 2 values");
}

}  // namespace
}  // namespace dsv4
