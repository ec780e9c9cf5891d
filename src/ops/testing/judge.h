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

// A sum of products in double, with the sum of magnitudes that its float32 error scales with.
struct Sum {
  double value = 0;
  double magnitude = 0;

  void add(double x) {
    value += x;
    magnitude += std::fabs(x);
  }
};

template <class A, class B>
Sum dot(const A* a, const B* b, int64_t n) {
  Sum s;
  for (int64_t i = 0; i < n; ++i) s.add(static_cast<double>(a[i]) * static_cast<double>(b[i]));
  return s;
}

// Roundings of a float32 sum of n products, in units of kUnit times the sum of magnitudes. Each product and each sum rounds once. With
// partial sums that wander like random walks, n sums in a row deviate by 0.3 units, with terms of one sign by sqrt(n) / 5; sqrt(n) / 2 is
// out of reach of a sane order of summation and far below the worst case n. 6 covers short sums, where chance does not average out.
inline double sum_units(int64_t n) { return 6 + std::sqrt(static_cast<double>(n)) / 2; }

// The same for the whole output, relative to its norm. Terms of random sign: |result| is about magnitude / sqrt(n), the error 0.3 units of
// magnitude, hence 0.3 sqrt(n) units of the result; three times that.
inline double dot_global(int64_t n) { return kUnit * (8 + std::sqrt(static_cast<double>(n))); }

void judge_floats(const Problem& p, int tensor, const Truth& truth, const Images& actual, Verdict& verdict);
// Exact.
void judge_ints(const Problem& p, int tensor, const std::vector<int32_t>& expected, const Images& actual, Verdict& verdict);

// One cache or query row before its rounding.
struct RowTruth {
  std::vector<double> value;
  std::vector<double> error;  // how far a float32 evaluation may be from value
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

// Rounding by definition, in double: nearest E4M3 (ties to even, saturating), nearest E2M1 (ties toward zero).
double nearest_e4m3(double x);
double nearest_e2m1(double x);

// Exact value of a weight element, decoded from the format's definition (not with the codecs of the tensor room).
std::vector<double> weight_row(const WeightView& w, int64_t row);

// x after the activation rounding per 128 values, by definition.
std::vector<double> rounded_activations(const std::vector<double>& x);

}  // namespace dsv4::optest
