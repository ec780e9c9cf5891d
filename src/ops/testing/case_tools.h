// Small things the case files share: inputs, shapes of rows, and how a case is registered.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/testing/judge.h"
#include "ops/testing/op_cases.h"
#include "tensor/dtype.h"

namespace dsv4::optest {

using ProblemPtr = std::unique_ptr<Problem>;

// Registers `build(problem, params)`: it fills a fresh problem whose random stream is the case's own.
template <class Params>
void add_case(std::vector<OpCase>& cases, const char* op, std::string name, void (*build)(Problem&, const Params&), Params params,
              bool may_be_unsupported = false) {
  cases.push_back({op, std::move(name), may_be_unsupported, [build, params](uint64_t seed) {
                     auto p = std::make_unique<Problem>(seed);
                     build(*p, params);
                     return p;
                   }});
}

// A norm weight: around 1, BF16.
inline std::vector<uint16_t> norm_weight(Rng& rng, int64_t n) {
  std::vector<uint16_t> w(static_cast<size_t>(n));
  for (uint16_t& x : w) x = float_to_bf16(static_cast<float>(1 + 0.3 * rng.normal()));
  return w;
}

inline double bf16_value(uint16_t b) {
  const uint32_t u = uint32_t{b} << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// cos and sin of random angles, [rows, rope_dim] interleaved, as rope_table gives them.
inline std::vector<float> random_rotations(Rng& rng, int64_t rows, int64_t rope_dim) {
  std::vector<float> v;
  for (int64_t i = 0; i < rows * rope_dim / 2; ++i) {
    const double angle = rng.uniform(-3.2, 3.2);
    v.push_back(static_cast<float>(std::cos(angle)));
    v.push_back(static_cast<float>(std::sin(angle)));
  }
  return v;
}

using Row = RowTruth;

// weight * x / sqrt(mean(x^2) + eps) (weight null: 1), and what float32 may make of it. x may carry errors of its own: they enter the
// result divided by the root, and, through the mean, at most with their share of the norm.
Row normed(const Row& x, const uint16_t* weight, double eps);
// Global bound of a norm over n values, in units: the common factor of a row, whose mean of squares has terms of one sign.
double norm_units(int64_t n);

// Rotates the last rope_dim values of each group of head_dim; sign -1 inverts.
void rotate(Row& x, int64_t head_dim, const float* cos_sin, int64_t rope_dim, double sign);

// Multiplies each group of head_dim by the normalized Walsh-Hadamard matrix, written as the matrix.
void hadamard(Row& x, int64_t head_dim);

// An exact row: no errors.
Row exact_row(const float* x, int64_t n);

}  // namespace dsv4::optest
