#include "tensor/rounding.h"

#include <algorithm>
#include <cmath>

#include "tensor/dtype.h"

namespace dsv4 {
namespace {

float max_magnitude(const float* x, int64_t n) {
  float m = 0;
  for (int64_t i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

}  // namespace

uint8_t e4m3_scale_code(const float* x, int64_t n) { return e8m0_ceil(std::max(max_magnitude(x, n), 1e-4f) * (1.0f / 448.0f)); }

uint8_t e2m1_scale_code(const float* x, int64_t n) {
  constexpr float kFloor = 6.0f * 0x1p-126f;
  return std::max<uint8_t>(1, e8m0_ceil(std::max(max_magnitude(x, n), kFloor) * (1.0f / 6.0f)));
}

void round_e4m3(const float* x, int64_t n, int64_t group, float* out) {
  for (int64_t g = 0; g < n; g += group) {
    const float s = e8m0_to_float(e4m3_scale_code(x + g, group));
    for (int64_t i = g; i < g + group; ++i) out[i] = e4m3_to_float(float_to_e4m3(x[i] / s)) * s;
  }
}

void round_e2m1(const float* x, int64_t n, int64_t group, float* out) {
  for (int64_t g = 0; g < n; g += group) {
    const float s = e8m0_to_float(e2m1_scale_code(x + g, group));
    for (int64_t i = g; i < g + group; ++i) out[i] = e2m1_to_float(float_to_e2m1(x[i] / s)) * s;
  }
}

void round_bf16(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(float_to_bf16(x[i]));
}

}  // namespace dsv4
