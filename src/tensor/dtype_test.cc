#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace dsv4 {
namespace {

// E4M3 from its definition, in double.
double e4m3_by_definition(int code) {
  const int sign = code >> 7, exponent = (code >> 3) & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::nan("");
  const double v = exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return sign ? -v : v;
}

TEST(Dtype, e4m3_all_256_codes_exact) {
  for (int c = 0; c < 256; ++c) {
    const float got = e4m3_to_float(static_cast<uint8_t>(c));
    const double want = e4m3_by_definition(c);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << c;
      continue;
    }
    EXPECT_EQ(static_cast<double>(got), want) << c;
    EXPECT_EQ(std::signbit(got), std::signbit(want)) << c;
    EXPECT_EQ(float_to_e4m3(got), c) << c;
  }
}

TEST(Dtype, e4m3_rounds_to_nearest_even_and_saturates) {
  // Every midpoint of neighbouring positive codes goes to the even code; a hair to either side goes to the nearer one.
  for (int c = 0; c < 126; ++c) {
    const float a = e4m3_to_float(static_cast<uint8_t>(c)), b = e4m3_to_float(static_cast<uint8_t>(c + 1));
    const float mid = (a + b) / 2;
    EXPECT_EQ(float_to_e4m3(mid), c % 2 == 0 ? c : c + 1) << c;
    EXPECT_EQ(float_to_e4m3(std::nextafter(mid, 0.0f)), c) << c;
    EXPECT_EQ(float_to_e4m3(std::nextafter(mid, 1e9f)), c + 1) << c;
    EXPECT_EQ(float_to_e4m3(-mid), (c % 2 == 0 ? c : c + 1) | 0x80) << c;
  }
  EXPECT_EQ(float_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(float_to_e4m3(463.9f), 0x7e);
  EXPECT_EQ(float_to_e4m3(NAN), 0x7f);
}

TEST(Dtype, e8m0_codes) {
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(e8m0_to_float(254), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
  for (int c = 1; c < 254; ++c) {
    const float p = e8m0_to_float(static_cast<uint8_t>(c));
    EXPECT_EQ(e8m0_ceil(p), c);
    EXPECT_EQ(e8m0_ceil(std::nextafter(p, INFINITY)), c + 1);
  }
}

TEST(Dtype, e2m1_codes_and_ties_go_down) {
  for (int c = 0; c < 16; ++c) {
    if (c != 8) {
      EXPECT_EQ(float_to_e2m1(e2m1_to_float(static_cast<uint8_t>(c))), c);
    }
  }
  EXPECT_EQ(e2m1_to_float(float_to_e2m1(0.25f)), 0.0f);
  EXPECT_EQ(e2m1_to_float(float_to_e2m1(2.5f)), 2.0f);
  EXPECT_EQ(e2m1_to_float(float_to_e2m1(-5.0f)), -4.0f);
  EXPECT_EQ(e2m1_to_float(float_to_e2m1(5.0001f)), 6.0f);
  EXPECT_EQ(e2m1_to_float(float_to_e2m1(1e9f)), 6.0f);
}

TEST(Dtype, bf16_rounds_to_nearest_even) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(NAN))));
  EXPECT_EQ(bf16_to_float(float_to_bf16(INFINITY)), INFINITY);
}

}  // namespace
}  // namespace dsv4
