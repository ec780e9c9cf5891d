#include "model/arithmetic.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(Arithmetic, has_names_both_ways) {
  for (const Arithmetic a : {Arithmetic::kQat, Arithmetic::kW8A16, Arithmetic::kEmulation, Arithmetic::kExact})
    EXPECT_EQ(arithmetic_named(arithmetic_name(a)), a);
  EXPECT_EQ(arithmetic_named("w8a8"), Arithmetic::kQat);
  EXPECT_EQ(arithmetic_named("W8A16"), std::nullopt);
  EXPECT_EQ(arithmetic_named(""), std::nullopt);
}

TEST(Arithmetic, rounds_activations) {
  EXPECT_EQ(activation_rounding(Arithmetic::kQat), ActivationRounding::kE4M3);
  EXPECT_EQ(activation_rounding(Arithmetic::kEmulation), ActivationRounding::kE4M3);
  EXPECT_EQ(activation_rounding(Arithmetic::kW8A16), ActivationRounding::kBF16);
  EXPECT_EQ(activation_rounding(Arithmetic::kExact), ActivationRounding::kNone);
}

}  // namespace
}  // namespace dsv4
