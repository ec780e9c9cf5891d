#include "ops/testing/case_tools.h"

#include <bit>
#include <cmath>

namespace dsv4::optest {

Row exact_row(const float* x, int64_t n) { return {std::vector<double>(x, x + n), std::vector<double>(static_cast<size_t>(n), 0.0)}; }

double norm_units(int64_t n) { return 4 * std::sqrt(static_cast<double>(n) / 3) / 2 + 6; }

Row normed(const Row& x, const uint16_t* weight, double eps) {
  const size_t n = x.value.size();
  Sum square;
  double own = 0;
  for (size_t i = 0; i < n; ++i) {
    square.add(x.value[i] * x.value[i]);
    own += x.error[i] * x.error[i];
  }
  const double root = std::sqrt(square.value / static_cast<double>(n) + eps);
  // The root halves the relative error of the mean of squares. Then round: the sum with eps, the root, the quotient, the product with the
  // weight, and 2 more for a reciprocal root: 6. Errors of x move the mean by at most their share of its norm.
  const double of_sum = square.value > 0 ? square.error() / square.value / 2 + std::sqrt(own / square.value) : 0;
  const double relative = of_sum + 6 * kUnit;
  Row out;
  for (size_t i = 0; i < n; ++i) {
    const double w = weight == nullptr ? 1.0 : bf16_value(weight[i]);
    out.value.push_back(w * x.value[i] / root);
    out.error.push_back(std::fabs(out.value.back()) * relative + std::fabs(w) * x.error[i] / root);
  }
  return out;
}

void rotate(Row& x, int64_t head_dim, const float* cos_sin, int64_t rope_dim, double sign) {
  for (size_t head = 0; head < x.value.size(); head += static_cast<size_t>(head_dim)) {
    for (int64_t i = 0; i < rope_dim; i += 2) {
      const size_t at = head + static_cast<size_t>(head_dim - rope_dim + i);
      const double a = x.value[at], b = x.value[at + 1], ea = x.error[at], eb = x.error[at + 1];
      const double c = cos_sin[i], s = sign * cos_sin[i + 1];
      // Two products and a sum of float32: 2 units of each product (one of its own, one of the sum).
      const auto error = [&](double p, double q, double ep, double eq) {
        return std::fabs(p) * ep + std::fabs(q) * eq + 2 * kUnit * (std::fabs(p) * (std::fabs(a) + ea) + std::fabs(q) * (std::fabs(b) + eb));
      };
      x.value[at] = a * c - b * s;
      x.error[at] = error(c, s, ea, eb);
      x.value[at + 1] = a * s + b * c;
      x.error[at + 1] = error(s, c, ea, eb);
    }
  }
}

void hadamard(Row& x, int64_t head_dim) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  // A butterfly has log2(n) levels, each rounding sums of at most the magnitude so far; then the scale, rounded itself, and its product.
  const double units = std::log2(static_cast<double>(head_dim)) + 3;
  for (size_t head = 0; head < x.value.size(); head += static_cast<size_t>(head_dim)) {
    std::vector<double> value, error;
    for (uint64_t row = 0; row < static_cast<uint64_t>(head_dim); ++row) {
      double sum = 0, square = 0, own = 0;
      for (uint64_t col = 0; col < static_cast<uint64_t>(head_dim); ++col) {
        const double v = x.value[head + col];
        sum += std::popcount(row & col) % 2 == 0 ? v : -v;
        square += v * v;
        own += x.error[head + col];
      }
      value.push_back(sum * scale);
      // Level l rounds sums of 2^l terms, of size about the norm of the terms: the norm of all is the scale of every level's rounding.
      error.push_back(own * scale + kUnit * units * std::sqrt(square));
    }
    std::copy(value.begin(), value.end(), x.value.begin() + static_cast<int64_t>(head));
    std::copy(error.begin(), error.end(), x.error.begin() + static_cast<int64_t>(head));
  }
}

}  // namespace dsv4::optest
