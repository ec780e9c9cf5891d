// Eight float lanes, the unit every kernel of this backend is written in, and the reason its results do not depend on the
// instruction set: each target offers the same eight lanes, the same operations, each rounded once (fma is one rounding everywhere).
// AVX2 and AVX-512 hold them in one 256-bit register (wide-inl.h puts two of them into one of 512 bits); the portable variant is an array.
// Semantics where targets could differ are fixed here: min and max are those of x86 (a < b ? a : b, so an unordered pair gives b),
// sums over lanes are the tree ((l0+l1)+(l2+l3)) + ((l4+l5)+(l6+l7)). See docs/numerics.md.
// Included once per target (HWY_TARGET_TOGGLE), after hwy/highway.h.
#if defined(DSV4_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_LANES_INL_H_
#undef DSV4_CPU_LANES_INL_H_
#else
#define DSV4_CPU_LANES_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#undef DSV4_CPU_AVX512
#undef DSV4_CPU_PORTABLE_LANES
#define DSV4_CPU_AVX512 (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)
#define DSV4_CPU_PORTABLE_LANES !(HWY_TARGET == HWY_AVX2 || DSV4_CPU_AVX512)

#if DSV4_CPU_PORTABLE_LANES

struct F8 {
  float v[8];
};
struct Mask8 {
  bool m[8];
};

#define DSV4_LANES(expr)                     \
  F8 r;                                      \
  for (int i = 0; i < 8; ++i) r.v[i] = expr; \
  return r
#define DSV4_LANES_MASK(expr)                \
  Mask8 r;                                   \
  for (int i = 0; i < 8; ++i) r.m[i] = expr; \
  return r

HWY_INLINE F8 zero8() { return F8{}; }
HWY_INLINE F8 set8(float x) { DSV4_LANES(x); }
HWY_INLINE F8 load8(const float* p) { DSV4_LANES(p[i]); }
HWY_INLINE void store8(F8 a, float* p) {
  for (int i = 0; i < 8; ++i) p[i] = a.v[i];
}
HWY_INLINE F8 load8_once(const float* p) { return load8(p); }
HWY_INLINE F8 load8_bf16(const uint16_t* p) { DSV4_LANES(std::bit_cast<float>(uint32_t{p[i]} << 16)); }
HWY_INLINE F8 add(F8 a, F8 b) { DSV4_LANES(a.v[i] + b.v[i]); }
HWY_INLINE F8 sub(F8 a, F8 b) { DSV4_LANES(a.v[i] - b.v[i]); }
HWY_INLINE F8 mul(F8 a, F8 b) { DSV4_LANES(a.v[i] * b.v[i]); }
HWY_INLINE F8 div(F8 a, F8 b) { DSV4_LANES(a.v[i] / b.v[i]); }
HWY_INLINE F8 fma(F8 a, F8 b, F8 c) { DSV4_LANES(std::fma(a.v[i], b.v[i], c.v[i])); }
HWY_INLINE F8 min8(F8 a, F8 b) { DSV4_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
HWY_INLINE F8 max8(F8 a, F8 b) { DSV4_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
HWY_INLINE F8 abs8(F8 a) { DSV4_LANES(std::fabs(a.v[i])); }
HWY_INLINE F8 copysign8(F8 magnitude, F8 sign) { DSV4_LANES(std::copysign(magnitude.v[i], sign.v[i])); }
HWY_INLINE F8 round8(F8 a) { DSV4_LANES(std::nearbyint(a.v[i])); }  // to nearest even
HWY_INLINE Mask8 lt8(F8 a, F8 b) { DSV4_LANES_MASK(a.v[i] < b.v[i]); }
HWY_INLINE Mask8 eq8(F8 a, F8 b) { DSV4_LANES_MASK(a.v[i] == b.v[i]); }
HWY_INLINE F8 select8(Mask8 m, F8 yes, F8 no) { DSV4_LANES(m.m[i] ? yes.v[i] : no.v[i]); }
HWY_INLINE bool any8(Mask8 m) {
  bool any = false;
  for (const bool b : m.m) any |= b;
  return any;
}
// a * 2^n, n an integer in float lanes in [-126, 127]; NaN (in both) stays NaN.
HWY_INLINE F8 scale_by_power8(F8 a, F8 n) { DSV4_LANES(n.v[i] != n.v[i] ? n.v[i] : a.v[i] * std::bit_cast<float>((static_cast<int32_t>(n.v[i]) + 127) << 23)); }
// Rounds the magnitude bits of each (finite) lane to 3 mantissa bits, ties to even; the carry goes into the exponent.
HWY_INLINE F8 round_mantissa3(F8 a) {
  DSV4_LANES(std::bit_cast<float>((std::bit_cast<uint32_t>(a.v[i]) + 0x7ffffu + ((std::bit_cast<uint32_t>(a.v[i]) >> 20) & 1u)) & 0xfff00000u));
}
HWY_INLINE float reduce_add8(F8 a) { return ((a.v[0] + a.v[1]) + (a.v[2] + a.v[3])) + ((a.v[4] + a.v[5]) + (a.v[6] + a.v[7])); }
// The sums over lanes of four vectors, each by the same tree.
HWY_INLINE void reduce_add8x4(F8 a, F8 b, F8 c, F8 d, float* out) {
  out[0] = reduce_add8(a);
  out[1] = reduce_add8(b);
  out[2] = reduce_add8(c);
  out[3] = reduce_add8(d);
}
HWY_INLINE void reduce_add8x3(F8 a, F8 b, F8 c, float* out) {
  out[0] = reduce_add8(a);
  out[1] = reduce_add8(b);
  out[2] = reduce_add8(c);
}
HWY_INLINE float reduce_max8(F8 a) {
  const auto mx = [](float x, float y) { return x > y ? x : y; };
  return mx(mx(mx(a.v[0], a.v[4]), mx(a.v[2], a.v[6])), mx(mx(a.v[1], a.v[5]), mx(a.v[3], a.v[7])));
}
HWY_INLINE F8 swap_lanes1(F8 a) { DSV4_LANES(a.v[i ^ 1]); }
HWY_INLINE F8 swap_lanes2(F8 a) { DSV4_LANES(a.v[i ^ 2]); }
HWY_INLINE F8 swap_lanes4(F8 a) { DSV4_LANES(a.v[i ^ 4]); }
HWY_INLINE F8 even_lanes(F8 a) { DSV4_LANES(a.v[i & ~1]); }  // l0 l0 l2 l2 ..
HWY_INLINE F8 odd_lanes(F8 a) { DSV4_LANES(a.v[i | 1]); }
// Flips the sign of lanes i with (i & stride) != 0.
template <int stride>
HWY_INLINE F8 negate_upper(F8 a) {
  DSV4_LANES((i & stride) != 0 ? -a.v[i] : a.v[i]);
}

#undef DSV4_LANES
#undef DSV4_LANES_MASK

#else  // one 256-bit register

using D8 = hn::CappedTag<float, 8>;
using DI8 = hn::CappedTag<int32_t, 8>;
using DU8 = hn::CappedTag<uint32_t, 8>;
using F8 = hn::Vec<D8>;
using Mask8 = hn::Mask<D8>;

HWY_INLINE F8 zero8() { return hn::Zero(D8()); }
HWY_INLINE F8 set8(float x) { return hn::Set(D8(), x); }
HWY_INLINE F8 load8(const float* p) { return hn::LoadU(D8(), p); }
HWY_INLINE void store8(F8 a, float* p) { hn::StoreU(a, D8(), p); }
// A load that the compiler may not repeat as the memory operand of each use: with three uses the load ports would bind, not the fma units.
HWY_INLINE F8 load8_once(const float* p) {
  F8 v = load8(p);
#if defined(__GNUC__) && defined(__x86_64__)
  asm("" : "+x"(v.raw));
#endif
  return v;
}
HWY_INLINE F8 load8_bf16(const uint16_t* p) {
  const auto words = hn::LoadU(hn::CappedTag<uint16_t, 8>(), p);
  return hn::BitCast(D8(), hn::ShiftLeft<16>(hn::PromoteTo(DU8(), words)));
}
HWY_INLINE F8 add(F8 a, F8 b) { return hn::Add(a, b); }
HWY_INLINE F8 sub(F8 a, F8 b) { return hn::Sub(a, b); }
HWY_INLINE F8 mul(F8 a, F8 b) { return hn::Mul(a, b); }
HWY_INLINE F8 div(F8 a, F8 b) { return hn::Div(a, b); }
HWY_INLINE F8 fma(F8 a, F8 b, F8 c) { return hn::MulAdd(a, b, c); }
HWY_INLINE F8 min8(F8 a, F8 b) { return hn::Min(a, b); }
HWY_INLINE F8 max8(F8 a, F8 b) { return hn::Max(a, b); }
HWY_INLINE F8 abs8(F8 a) { return hn::Abs(a); }
HWY_INLINE F8 copysign8(F8 magnitude, F8 sign) { return hn::CopySign(magnitude, sign); }
HWY_INLINE F8 round8(F8 a) { return hn::Round(a); }
HWY_INLINE Mask8 lt8(F8 a, F8 b) { return hn::Lt(a, b); }
HWY_INLINE Mask8 eq8(F8 a, F8 b) { return hn::Eq(a, b); }
HWY_INLINE F8 select8(Mask8 m, F8 yes, F8 no) { return hn::IfThenElse(m, yes, no); }
HWY_INLINE bool any8(Mask8 m) { return !hn::AllFalse(D8(), m); }
HWY_INLINE F8 scale_by_power8(F8 a, F8 n) {
  const hn::Vec<DI8> integer{_mm256_cvttps_epi32(n.raw)};  // in range: without the saturation of hn::ConvertTo, four operations
  const auto biased = hn::Add(integer, hn::Set(DI8(), 127));
  return hn::Mul(a, hn::BitCast(D8(), hn::ShiftLeft<23>(biased)));
}
HWY_INLINE F8 round_mantissa3(F8 a) {
  const auto u = hn::BitCast(DU8(), a);
  const auto odd = hn::And(hn::ShiftRight<20>(u), hn::Set(DU8(), 1u));
  return hn::BitCast(D8(), hn::And(hn::Add(hn::Add(u, hn::Set(DU8(), 0x7ffffu)), odd), hn::Set(DU8(), 0xfff00000u)));
}
HWY_INLINE float reduce_add8(F8 a) {
  const hn::Half<D8> h;
  const auto two = hn::Add(a, hn::Shuffle2301(a));
  const auto four = hn::Add(two, hn::Shuffle1032(two));
  return hn::GetLane(hn::Add(hn::LowerHalf(h, four), hn::UpperHalf(h, four)));
}
// x0+x1 x2+x3 y0+y1 y2+y3 | x4+x5 x6+x7 y4+y5 y6+y7
HWY_INLINE F8 add_neighbours(F8 x, F8 y) { return hn::Add(F8{_mm256_shuffle_ps(x.raw, y.raw, 0x88)}, F8{_mm256_shuffle_ps(x.raw, y.raw, 0xdd)}); }
// The sums over lanes of four vectors, each by the same tree: neighbours, then neighbouring pairs, then the halves. A third of the work of four
// single ones.
HWY_INLINE hn::Vec<hn::Half<D8> > reduced8x4(F8 a, F8 b, F8 c, F8 d) {
  const F8 four = add_neighbours(add_neighbours(a, b), add_neighbours(c, d));  // a b c d | a b c d
  const hn::Half<D8> half;
  return hn::Add(hn::LowerHalf(half, four), hn::UpperHalf(half, four));
}
HWY_INLINE void reduce_add8x4(F8 a, F8 b, F8 c, F8 d, float* out) { hn::StoreU(reduced8x4(a, b, c, d), hn::Half<D8>(), out); }
HWY_INLINE void reduce_add8x3(F8 a, F8 b, F8 c, float* out) {
  const auto sums = reduced8x4(a, b, c, c);
  const hn::Half<hn::Half<D8> > two;
  hn::StoreU(hn::LowerHalf(two, sums), two, out);
  out[2] = hn::GetLane(hn::UpperHalf(two, sums));
}
HWY_INLINE float reduce_max8(F8 a) {
  const hn::Half<D8> h;
  const auto four = hn::Max(hn::LowerHalf(h, a), hn::UpperHalf(h, a));
  const auto two = hn::Max(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Max(two, hn::Shuffle2301(two)));
}
HWY_INLINE F8 swap_lanes1(F8 a) { return hn::Shuffle2301(a); }
HWY_INLINE F8 swap_lanes2(F8 a) { return hn::Shuffle1032(a); }
HWY_INLINE F8 swap_lanes4(F8 a) { return hn::ConcatLowerUpper(D8(), a, a); }
HWY_INLINE F8 even_lanes(F8 a) { return hn::DupEven(a); }
HWY_INLINE F8 odd_lanes(F8 a) { return hn::DupOdd(a); }
template <int stride>
HWY_INLINE F8 negate_upper(F8 a) {
  alignas(32) static constexpr uint32_t kSign[8] = {0u,
                                                    (1 & stride) ? 0x80000000u : 0u,
                                                    (2 & stride) ? 0x80000000u : 0u,
                                                    (3 & stride) ? 0x80000000u : 0u,
                                                    (4 & stride) ? 0x80000000u : 0u,
                                                    (5 & stride) ? 0x80000000u : 0u,
                                                    (6 & stride) ? 0x80000000u : 0u,
                                                    (7 & stride) ? 0x80000000u : 0u};
  return hn::Xor(a, hn::BitCast(D8(), hn::Load(DU8(), kSign)));
}

#endif

// Sum of squares: 32 partial sums (four accumulators a0..a3), (a0 + a2) + (a1 + a3), then the tree. What is left of n after steps of
// 32 goes into a0 by eights, a last part of n % 8 padded with zeros.
HWY_INLINE float sum_of_squares(const float* x, int64_t n) {
  F8 s0 = zero8(), s1 = zero8(), s2 = zero8(), s3 = zero8();
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const F8 v0 = load8(x + i), v1 = load8(x + i + 8), v2 = load8(x + i + 16), v3 = load8(x + i + 24);
    s0 = fma(v0, v0, s0);
    s1 = fma(v1, v1, s1);
    s2 = fma(v2, v2, s2);
    s3 = fma(v3, v3, s3);
  }
  for (; i + 8 <= n; i += 8) {
    const F8 v = load8(x + i);
    s0 = fma(v, v, s0);
  }
  if (i < n) {
    float tail[8] = {};
    std::memcpy(tail, x + i, static_cast<size_t>(n - i) * sizeof(float));
    const F8 v = load8(tail);
    s0 = fma(v, v, s0);
  }
  return reduce_add8(add(add(s0, s2), add(s1, s3)));
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
