// Draws tokens. ids[r] comes in as the arg max of row r (argmax.h) and goes out as the token drawn by draws[r]; rows of temperature 0, and ids below 0
// (a NaN), stay as they are; a largest logit that is infinite gives -1.
//
// A token's weight is sample_weight(), an integer, so that sums have no order and a row gives the same token on every device. Candidates are the tokens
// of weight above 0, heaviest first, of equals the lowest id. Of them stay: the first top_k (0 = all); of these the ones of at least min_p times the
// heaviest possible weight; of these, with top_p < 1 and S the sum of their weights, the fewest first ones that weigh floor(top_p * S) or more, at
// least one. M being the weight of what stays, the token is the one in whose share floor(random * M / 2^53) lies.
// Source: softmax sampling with the cuts of engine/request.h (SamplingParams).
#pragma once

#include "ops/op.h"
#include "tensor/host_device.h"

namespace dsv4 {

struct Draw {
  float temperature = 0;  // 0: nothing is drawn
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1)
  int32_t top_k = 0;      // 0 = all
  int64_t random = 0;     // [0, 2^53)
};

struct SampleArgs {
  Matrix<const float> logits;   // [R, vocab], vocab at most 2^18
  const Draw* draws = nullptr;  // [R]
  Vector<int32_t> ids;          // [R]
};

Status check(const SampleArgs& args);
OpCost cost(const SampleArgs& args);
Status sample_reference(OpContext& context, const SampleArgs& args);

// One row of it, on the host; n logits without a NaN, `best` the place of the largest.
int32_t sample_row(const float* logits, int64_t n, int32_t best, const Draw& draw);

inline constexpr int kSampleWeightBits = 40;  // the best token weighs 2^40
inline constexpr int64_t kMaxSampleVocab = int64_t{1} << 18;

namespace sample_detail {
// Sums and products that no compiler contracts.
DSV4_HOST_DEVICE inline double times(double a, double b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
DSV4_HOST_DEVICE inline double plus(double a, double b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
}  // namespace sample_detail

// floor(2^40 exp((logit - best) * inverse_temperature)) to within 1: the exponential by n = round(x / ln 2), a Taylor polynomial of degree 11 in
// the remainder, |r| <= ln 2 / 2 (rest below 1e-14), and a power of two. 0 for -infinity.
DSV4_HOST_DEVICE inline uint64_t sample_weight(float logit, float best, double inverse_temperature) {
  using sample_detail::plus;
  using sample_detail::times;
  constexpr double kLog2E = 1.4426950408889634, kRound = 6755399441055744.0;          // 1.5 * 2^52
  constexpr double kLn2High = 0.69314718036912382, kLn2Low = 1.9082149292705877e-10;  // 32 bits, and the rest
  double x = times(plus(static_cast<double>(logit), -static_cast<double>(best)), inverse_temperature);
  const bool any = x > -28.0;  // 2^40 e^-28 < 1
  if (!any) x = -28.0;
  const double n = plus(plus(times(x, kLog2E), kRound), -kRound);
  const double r = plus(plus(x, -times(n, kLn2High)), -times(n, kLn2Low));
  double p = 1.0 / 39916800;
  constexpr double kInverseFactorials[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0};
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#pragma unroll
#endif
  for (const double c : kInverseFactorials) p = plus(times(p, r), c);
  // p * 2^(n + 40), through the exponent's bits: n is -41 .. 0.
  const int64_t bits = (static_cast<int64_t>(n) + kSampleWeightBits + 1023) << 52;
  union {
    int64_t bits;
    double value;
  } power = {bits};
  return any ? static_cast<uint64_t>(static_cast<int64_t>(times(p, power.value))) : 0;
}

}  // namespace dsv4
