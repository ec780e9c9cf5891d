// Shared by the reference operators: rows over the pool, and the plainest numeric loops. Not for other backends.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>

#include "base/thread_pool.h"
#include "ops/op.h"
#include "tensor/dtype.h"

namespace dsv4::reference {

inline ThreadPool& pool(OpContext& context) { return *static_cast<HostContext&>(context).pool; }

// body(i) for i in [0, count), on the pool.
inline void for_each_row(OpContext& context, int64_t count, const std::function<void(int64_t)>& body) {
  pool(context).parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

// Sum of a[i]*b[i] in 16 interleaved partial sums, added in order: plain, and the compiler can vectorise it without reordering.
inline float dot(const float* a, const float* b, int64_t n) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int l = 0; l < 16; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  float tail = 0;
  for (; i < n; ++i) tail += a[i] * b[i];
  float sum = tail;
  for (const float lane : lanes) sum += lane;
  return sum;
}

inline float mean_square(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(sum / static_cast<double>(n));
}

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// out = weight * x / sqrt(mean(x^2) + eps); out may be x.
inline void rms_norm_row(const float* x, const uint16_t* weight, int64_t n, float eps, float* out) {
  const float root = std::sqrt(mean_square(x, n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(weight[i]) * (x[i] / root);
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
