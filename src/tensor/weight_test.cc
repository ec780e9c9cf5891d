#include "tensor/weight.h"

#include <gtest/gtest.h>

#include <vector>

namespace dsv4 {
namespace {

TEST(Weight, mxfp4_low_nibble_is_the_even_column) {
  std::vector<uint8_t> data(16, 0), scale{127};
  data[0] = 0x72;  // column 0 = code 2 (1.0), column 1 = code 7 (6.0)
  const WeightView w{WeightFormat::kMxfp4, data.data(), scale.data(), 1, 32};
  std::vector<float> row(32);
  decode_weight_row(w, 0, row.data());
  EXPECT_EQ(row[0], 1.0f);
  EXPECT_EQ(row[1], 6.0f);
  EXPECT_EQ(w.total_bytes(), 17);
}

TEST(Weight, fp8_scale_grid_is_128_by_128_and_rounds_up) {
  const int64_t n = 130, k = 200;
  std::vector<uint8_t> data(static_cast<size_t>(n * k), 0x38);  // 1.0
  const std::vector<uint8_t> scale{127, 128, 129, 130};         // 1, 2 / 4, 8
  const WeightView w{WeightFormat::kFp8Block, data.data(), scale.data(), n, k};
  std::vector<float> row(k);
  decode_weight_row(w, 127, row.data());
  EXPECT_EQ(row[127], 1.0f);
  EXPECT_EQ(row[128], 2.0f);
  decode_weight_row(w, 128, row.data());
  EXPECT_EQ(row[0], 4.0f);
  EXPECT_EQ(row[199], 8.0f);
  EXPECT_EQ(w.total_bytes(), n * k + 4);
}

TEST(Weight, check_names_the_rule) {
  uint8_t byte = 0;
  EXPECT_EQ(check_weight("w1", {WeightFormat::kMxfp4, &byte, &byte, 1, 33}).message(), "w1: mxfp4 weight has k = 33, it must be a multiple of 32");
  EXPECT_FALSE(check_weight("w1", {WeightFormat::kFp8Block, &byte, nullptr, 1, 32}).ok());
  EXPECT_FALSE(check_weight("w1", {WeightFormat::kBF16, nullptr, nullptr, 1, 32}).ok());
  EXPECT_TRUE(check_weight("w1", {WeightFormat::kBF16, &byte, nullptr, 1, 1}).ok());
}

}  // namespace
}  // namespace dsv4
