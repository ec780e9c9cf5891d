// Shared by the reference operators: rows over the pool, and the plainest numeric loops. Not for other backends.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>

#include "base/thread_pool.h"
#include "ops/op.h"
#include "tensor/dtype.h"
#include "tensor/rounding.h"

namespace dsv4::reference {

inline ThreadPool& pool(OpContext& context) { return *static_cast<HostContext&>(context).pool; }

// body(i) for i in [0, count), on the pool.
inline void for_each_row(OpContext& context, int64_t count, const std::function<void(int64_t)>& body) {
  pool(context).parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

// Sum of a[i]*b[i] in double, rounded once: products of floats are exact in double, and what follows may round to 3 bits, where
// one float32 ulp decides. 8 interleaved partial sums, so that the compiler can vectorise it without reordering.
inline float dot(const float* a, const float* b, int64_t n) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += static_cast<double>(a[i + l]) * b[i + l];
  }
  double sum = 0;
  for (; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  for (const double lane : lanes) sum += lane;
  return static_cast<float>(sum);
}

template <class T>
double mean_square(const T* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum / static_cast<double>(n);
}

// n values through a rounding, E4M3 in whole groups; out may be x.
inline void round_activations(ActivationRounding rounding, const float* x, int64_t n, float* out) {
  if (rounding == ActivationRounding::kE4M3) round_e4m3(x, n, kActivationGroup, out);
  if (rounding == ActivationRounding::kBF16) round_bf16(x, n, out);
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// out = weight * x / sqrt(mean(x^2) + eps), in double with one rounding at the end. out may be x.
template <class T>
void rms_norm_row(const T* x, const uint16_t* weight, int64_t n, float eps, float* out) {
  const double scale = 1.0 / std::sqrt(mean_square(x, n) + static_cast<double>(eps));
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(static_cast<double>(bf16_to_float(weight[i])) * x[i] * scale);
}

// Rotates interleaved pairs; cos_sin as rope_table gives it; sign -1 inverts.
inline void rotate_pairs(float* x, const float* cos_sin, int64_t rope_dim, float sign) {
  for (int64_t i = 0; i < rope_dim; i += 2) {
    const float a = x[i], b = x[i + 1], c = cos_sin[i], s = sign * cos_sin[i + 1];
    x[i] = a * c - b * s;
    x[i + 1] = a * s + b * c;
  }
}

}  // namespace dsv4::reference
