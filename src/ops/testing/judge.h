// Comparisons of an output with the truth: values computed in double, straight from model.md, and a bound per element.
#pragma once

#include <vector>

#include "cache/paged_rows.h"
#include "ops/testing/problem.h"

namespace dsv4::optest {

inline constexpr double kUnit = 0x1p-24;  // unit roundoff of float32

// Expected values of a float output, dense [rows, cols].
struct Truth {
  std::vector<double> value;  // NaN or infinite where the output must be
  std::vector<double> bound;  // accepted only when |actual - value| <= bound
  double global = 1;          // largest accepted |actual - value|_2 / |value|_2 of the whole output

  void push(double v, double b) {
    value.push_back(v);
    bound.push_back(b);
  }
};

// A sum in double, and how far a float32 evaluation may be from it.
struct Sum {
  double value = 0;
  double square = 0;
  int64_t count = 0;

  void add(double x) {
    value += x;
    square += x * x;
    ++count;
  }
  // Each partial sum S_i rounds by a random share of kUnit |S_i|, of deviation 3^-0.5. Over random orders of summation the mean of S_i^2 is
  // square i / n + value^2 i^2 / n^2; its sum over i is n (square / 2 + value^2 / 3). So the deviation of one accumulator that takes all
  // terms in a row is 0.58 kUnit times the root of that; 7 deviations are accepted. Partial sums side by side deviate less. Products round
  // once each: kUnit sqrt(square) is inside, as n / 2 >= 1 from two terms on.
  double error() const { return 4 * kUnit * std::sqrt(static_cast<double>(count) * (square / 2 + value * value / 3)); }
};

template <class A, class B>
Sum dot(const A* a, const B* b, int64_t n) {
  Sum s;
  for (int64_t i = 0; i < n; ++i) s.add(static_cast<double>(a[i]) * static_cast<double>(b[i]));
  return s;
}

// The same for a whole output of sums of n terms of random sign, relative to its norm: one deviation is 0.41 sqrt(n) units, three are
// accepted, and 6 for what else rounds.
inline double sum_global(int64_t n) { return kUnit * (6 + 1.25 * std::sqrt(static_cast<double>(n))); }

void judge_floats(const Problem& p, int tensor, const Truth& truth, const Images& actual, Verdict& verdict);
// Exact.
void judge_ints(const Problem& p, int tensor, const std::vector<int32_t>& expected, const Images& actual, Verdict& verdict);

// A row of values in double, and how far a float32 evaluation may be from each.
struct RowTruth {
  std::vector<double> value;
  std::vector<double> error;
};

// How a row is rounded: E4M3 groups over the first `rounded` values or E2M1 groups over all of them, then BF16 for the rest or not.
struct RowRounding {
  enum class Grid : uint8_t { kNone, kE4M3, kE2M1 } grid = Grid::kNone;
  int64_t rounded = 0;  // values on the grid, from the start
  int64_t group = 64;
  bool bf16_rest = false;
};

// Accepts a value only if rounding some number within `error` of the truth gives it, under a scale that some amax within the errors gives.
// So a value may fall to the other side only where the unrounded truth lies within `error` of the boundary.
void judge_rounded_row(const std::string& what, const RowTruth& truth, const RowRounding& rounding, const float* actual, Verdict& verdict);

// Refuses when more than one in 1,000 elements (and more than two) fell to the other side of a rounding boundary than the reference's:
// float32 errors are 1e-5 of a step, so even a tenth of that share is not chance.
void judge_flips(int64_t compared, Verdict& verdict);

// Rounding by definition, in double: nearest E4M3 (ties to even, saturating), nearest E2M1 (ties toward zero), nearest BF16 (ties to even).
double nearest_e4m3(double x);
double nearest_e2m1(double x);
double nearest_bf16(double x);

// Exponent of the smallest power of two >= x > 0.
int ceil_log2(double x);

// Values of codes by definition.
double e4m3_value(uint8_t code);
double e8m0_value(uint8_t code);
double e2m1_value(int nibble);

// Exact values of a weight row, decoded from the format's definition (not with the codecs of the tensor room).
std::vector<double> weight_row(const WeightView& w, int64_t row);

// x after an activation rounding, by definition.
std::vector<double> rounded_activations(const std::vector<double>& x, ActivationRounding rounding = ActivationRounding::kE4M3);

}  // namespace dsv4::optest
