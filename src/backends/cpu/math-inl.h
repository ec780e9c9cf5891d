// exp and what is built on it, and the activation rounding, on eight lanes: the same operations in every target.
#if defined(DSV4_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_MATH_INL_H_
#undef DSV4_CPU_MATH_INL_H_
#else
#define DSV4_CPU_MATH_INL_H_
#endif

#include "backends/cpu/lanes-inl.h"
#include "tensor/dtype.h"
#include "tensor/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

inline constexpr float kExpZero = -86.5f;

// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor's degree 7 in r (truncation below 6e-9 relative, a tenth of an ulp), times 2^n. exp(0) is
// exactly 1, exp(inf) is inf, NaN stays NaN; below kExpZero (2.7e-38) it is 0. Largest error against the true value: 1.1 ulp (cpu_test).
HWY_INLINE F8 exp8(F8 x) {
  // ln 2 as a float with 9 trailing zero bits plus a remainder: n * kLn2Hi is exact for |n| < 2^9.
  constexpr float kLog2E = 1.44269504f, kLn2Hi = 0.693359375f, kLn2Lo = -2.12194440e-4f;
  const F8 clamped = min8(set8(89.0f), max8(set8(kExpZero), x));
  const F8 n = round8(mul(clamped, set8(kLog2E)));
  F8 r = fma(n, set8(-kLn2Hi), clamped);
  r = fma(n, set8(-kLn2Lo), r);
  F8 p = set8(1.0f / 5040);
  p = fma(p, r, set8(1.0f / 720));
  p = fma(p, r, set8(1.0f / 120));
  p = fma(p, r, set8(1.0f / 24));
  p = fma(p, r, set8(1.0f / 6));
  p = fma(p, r, set8(0.5f));
  p = fma(p, r, set8(1.0f));
  p = fma(p, r, set8(1.0f));
  // n is 128 at most and -125 at least: half of 2^n is a float, and no subnormal comes up, which would cost some hundred cycles.
  return select8(lt8(x, set8(kExpZero)), zero8(), scale_by_power8(add(p, p), sub(n, set8(1.0f))));
}

HWY_INLINE F8 sigmoid8(F8 x) { return div(set8(1.0f), add(set8(1.0f), exp8(sub(zero8(), x)))); }

// silu(min(gate, limit)) * clamp(up, -limit, limit); NaN passes through.
HWY_INLINE F8 swiglu8(F8 gate, F8 up, F8 limit) {
  const F8 g = min8(limit, gate), u = min8(limit, max8(sub(zero8(), limit), up));
  return mul(mul(g, sigmoid8(g)), u);
}

// The E4M3 activation rounding of one group of n values (a multiple of 8); equals round_e4m3 of tensor/rounding.h bit for bit. The
// quotient by the power of two s is a product with 1/s, exact like it. Magnitudes of 2^-6 and more keep three mantissa bits; below,
// values are multiples of 2^-9, which adding and taking away 2^14 rounds to (its unit in the last place is 2^-9).
HWY_INLINE float e4m3_group_scale(const float* x, int64_t n) {
  F8 top = zero8();
  for (int64_t i = 0; i < n; i += 8) top = max8(abs8(load8(x + i)), top);  // max8 gives its second operand for NaN: NaN is passed over
  const float floor = 1e-4f, amax = reduce_max8(top);
  return e8m0_to_float(e8m0_ceil((amax < floor ? floor : amax) * (1.0f / 448.0f)));
}
HWY_INLINE F8 round_to_e4m3(F8 y) {
  const F8 a = abs8(y);
  const F8 normal = min8(set8(448.0f), round_mantissa3(a));
  const F8 small = sub(add(a, set8(16384.0f)), set8(16384.0f));
  const F8 rounded = copysign8(select8(lt8(a, set8(0.015625f)), small, normal), y);
  return select8(eq8(y, y), rounded, y);
}
HWY_INLINE void round_e4m3_group(const float* x, int64_t n, float* out) {
  const float s = e4m3_group_scale(x, n);
  const F8 scale = set8(s), inverse = set8(1.0f / s);
  for (int64_t i = 0; i < n; i += 8) store8(mul(round_to_e4m3(mul(load8(x + i), inverse)), scale), out + i);
}

// The E2M1 rounding of one group of 32; equals round_e2m1 bit for bit. The value is the sum of the steps between codes whose midpoint
// lies below the magnitude (a tie goes down).
HWY_INLINE void round_e2m1_group(const float* x, float* out) {
  F8 top = zero8();
  for (int64_t i = 0; i < kIndexGroup; i += 8) top = max8(abs8(load8(x + i)), top);
  constexpr float kFloor = 6.0f * 0x1p-126f;
  const float amax = reduce_max8(top);
  const uint8_t code = e8m0_ceil((amax < kFloor ? kFloor : amax) * (1.0f / 6.0f));
  const float s = e8m0_to_float(code < 1 ? uint8_t{1} : code);
  const F8 scale = set8(s);
  for (int64_t i = 0; i < kIndexGroup; i += 8) {
    const F8 y = div(load8(x + i), scale), a = abs8(y);
    constexpr float kMidpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    constexpr float kSteps[7] = {0.5f, 0.5f, 0.5f, 0.5f, 1.0f, 1.0f, 2.0f};
    F8 value = zero8();
    for (int c = 0; c < 7; ++c) value = add(value, select8(lt8(set8(kMidpoints[c]), a), set8(kSteps[c]), zero8()));
    store8(mul(copysign8(value, y), scale), out + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
