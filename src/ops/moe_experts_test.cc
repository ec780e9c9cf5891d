#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

// Two experts of one hidden value and two inner ones, plain float32 weights.
class MoeExperts : public ReferenceOps {
 protected:
  std::vector<float> w1[2] = {{1, 2}, {3, -1}}, w3[2] = {{4, 1}, {1, 1}}, w2[2] = {{1, 10}, {-1, 2}};
  const uint8_t* p1[2];
  const uint8_t* p3[2];
  const uint8_t* p2[2];
  std::vector<float> x = {2, 1}, weights = {0.5f, 0.25f, 1, NAN}, y = {100, 200};
  std::vector<int32_t> experts = {1, 0, 0, -1};

  MoeExpertsArgs args() {
    for (int e = 0; e < 2; ++e) {
      p1[e] = reinterpret_cast<const uint8_t*>(w1[e].data());
      p3[e] = reinterpret_cast<const uint8_t*>(w3[e].data());
      p2[e] = reinterpret_cast<const uint8_t*>(w2[e].data());
    }
    MoeExpertsArgs a;
    a.x = matrix(x, 2, 1);
    a.table = {WeightFormat::kF32, 2, 1, 2, p1, nullptr, p3, nullptr, p2, nullptr};
    a.experts = matrix(experts, 2, 2);
    a.weights = matrix(weights, 2, 2);
    a.limit = 5;
    a.y = matrix(y, 2, 1);
    return a;
  }
};

double silu(double v) { return v / (1 + std::exp(-v)); }

TEST_F(MoeExperts, by_hand) {
  ASSERT_TRUE(run(ops().moe_experts, args()).ok());
  // Row 0, x = 2: expert 1: g = (5 of 6, -2), u = (2, 2); expert 0: g = (2, 4), u = (5 of 8, 2).
  const double first = 0.5 * (-1 * silu(5) * 2 + 2 * silu(-2) * 2), second = 0.25 * (silu(2) * 5 + 10 * silu(4) * 2);
  EXPECT_NEAR(y[0], 100 + first + second, 1e-4);
  // Row 1, x = 1: expert 0 alone; the other place is empty, whatever its weight.
  EXPECT_NEAR(y[1], 200 + silu(1) * 4 + 10 * silu(2) * 1, 1e-4);
}

TEST_F(MoeExperts, refuses_bad_arguments) {
  MoeExpertsArgs a = args();
  ASSERT_TRUE(check(a).ok());
  a.table.w3 = nullptr;
  expect_refused(check(a), "moe_experts: an expert pointer array is missing");
  a = args();
  a.table.format = WeightFormat::kMxfp4;
  expect_refused(check(a), "moe_experts: an expert scale array is missing");
  a = args();
  a.limit = 0;
  expect_refused(check(a), "moe_experts: limit is 0.000000, it must be positive");
  a = args();
  a.rounding = ActivationRounding::kE4M3;
  expect_refused(check(a), "moe_experts: sizes are 1 and 2, rounded activations need multiples of 128");
  a = args();
  a.experts = matrix(experts, 1, 2);
  expect_refused(check(a), "moe_experts: experts is [1, 2], expected [2, 2]");
  a = args();
  a.y = matrix(y, 1, 2);
  EXPECT_FALSE(check(a).ok());
  a = args();
  a.table.num_experts = 0;
  expect_refused(check(a), "moe_experts: the table has no experts");
}

}  // namespace
}  // namespace dsv4
