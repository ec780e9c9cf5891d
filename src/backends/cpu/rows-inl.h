// Pieces of rows shared by the row and cache kernels: normalisation, rotation, Hadamard transform.
#if defined(DSV4_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_ROWS_INL_H_
#undef DSV4_CPU_ROWS_INL_H_
#else
#define DSV4_CPU_ROWS_INL_H_
#endif

#include "backends/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

// 1 / sqrt(mean(x^2) + eps)
HWY_INLINE float inverse_root_mean_square(const float* x, int64_t n, float eps) { return 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps); }

// out = weight * (x * inverse root); out may be x.
HWY_INLINE void normalize_row(const float* x, const uint16_t* weight, int64_t n, float eps, float* out) {
  const float inverse = inverse_root_mean_square(x, n, eps);
  const F8 factor = set8(inverse);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(mul(load8_bf16(weight + i), mul(load8(x + i), factor)), out + i);
  for (; i < n; ++i) out[i] = bf16_to_float(weight[i]) * (x[i] * inverse);
}

// Interleaved pairs (a, b) -> (a cos - b sin, a sin + b cos), in place; kInverse negates the angle.
template <bool kInverse>
HWY_INLINE void rotate_row(float* x, const float* cos_sin, int64_t rope) {
  int64_t i = 0;
  for (; i + 8 <= rope; i += 8) {
    const F8 v = load8(x + i), cs = load8(cos_sin + i);
    const F8 cosine = even_lanes(cs);
    F8 sine = negate_upper<1>(odd_lanes(cs));  // + - + - ..
    if constexpr (!kInverse) sine = sub(zero8(), sine);
    store8(fma(v, cosine, mul(swap_lanes1(v), sine)), x + i);
  }
  for (; i < rope; i += 2) {
    const float a = x[i], b = x[i + 1], c = cos_sin[i], s = kInverse ? -cos_sin[i + 1] : cos_sin[i + 1];
    x[i] = std::fma(a, c, b * -s);
    x[i + 1] = std::fma(b, c, a * s);
  }
}

// x <- H x * n^-0.5, n a power of two: butterflies from stride 1 up, then the scale. The sums are those of hadamard_transform.
HWY_INLINE void hadamard_row(float* x, int64_t n) {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  if (n < 8) {
    for (int64_t stride = 1; stride < n; stride *= 2) {
      for (int64_t i = 0; i < n; ++i) {
        if ((i & stride) != 0) continue;
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
    for (int64_t i = 0; i < n; ++i) x[i] *= scale;
    return;
  }
  for (int64_t i = 0; i < n; i += 8) {
    // (a, b) -> (b + a, a + -b): the lane with the stride's bit set holds b, negated.
    F8 v = load8(x + i);
    v = add(swap_lanes1(v), negate_upper<1>(v));
    v = add(swap_lanes2(v), negate_upper<2>(v));
    v = add(swap_lanes4(v), negate_upper<4>(v));
    store8(v, x + i);
  }
  for (int64_t stride = 8; stride < n; stride *= 2) {
    for (int64_t i = 0; i < n; i += 8) {
      if ((i & stride) != 0) continue;
      const F8 a = load8(x + i), b = load8(x + i + stride);
      store8(add(a, b), x + i);
      store8(sub(a, b), x + i + stride);
    }
  }
  for (int64_t i = 0; i < n; i += 8) store8(mul(load8(x + i), set8(scale)), x + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
