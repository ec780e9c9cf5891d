// As many F8 as the widest register holds, side by side: two with AVX-512, one elsewhere. Each F8 of a wide vector is a sum of its own (another
// output, head or stretch of values), so the width changes how many run at once and never a bit of any.
#if defined(DSV4_CPU_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_WIDE_INL_H_
#undef DSV4_CPU_WIDE_INL_H_
#else
#define DSV4_CPU_WIDE_INL_H_
#endif

#include "backends/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

#if DSV4_CPU_AVX512

inline constexpr int kWide = 2;
using DWide = hn::CappedTag<float, 16>;
using FWide = hn::Vec<DWide>;

HWY_INLINE FWide zero_wide() { return hn::Zero(DWide()); }
HWY_INLINE FWide set_wide(float x) { return hn::Set(DWide(), x); }
HWY_INLINE FWide load_wide(const float* p) { return hn::LoadU(DWide(), p); }
// Not repeated by the compiler as the memory operand of each use (load8_once).
HWY_INLINE FWide load_wide_once(const float* p) {
  FWide v = load_wide(p);
#if defined(__GNUC__)
  asm("" : "+v"(v.raw));
#endif
  return v;
}
HWY_INLINE void store_wide(FWide a, float* p) { hn::StoreU(a, DWide(), p); }
HWY_INLINE FWide mul(FWide a, FWide b) { return hn::Mul(a, b); }
HWY_INLINE FWide fma(FWide a, FWide b, FWide c) { return hn::MulAdd(a, b, c); }
// The eight floats at p in every F8.
HWY_INLINE FWide load_same(const float* p) { return FWide{_mm512_broadcast_f32x8(_mm256_loadu_ps(p))}; }
// F8 i from p + i * stride.
HWY_INLINE FWide load_apart(const float* p, int64_t stride) {
  return FWide{_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p)), _mm256_loadu_ps(p + stride), 1)};
}
HWY_INLINE FWide join(const F8 (&parts)[kWide]) { return FWide{_mm512_insertf32x8(_mm512_castps256_ps512(parts[0].raw), parts[1].raw, 1)}; }
template <int I>
HWY_INLINE F8 part(FWide a) {
  static_assert(I < kWide);
  return F8{_mm512_extractf32x8_ps(a.raw, I)};
}
HWY_INLINE FWide add_neighbours(FWide x, FWide y) {
  return hn::Add(FWide{_mm512_shuffle_ps(x.raw, y.raw, 0x88)}, FWide{_mm512_shuffle_ps(x.raw, y.raw, 0xdd)});
}
// The sums over lanes of each F8, by the tree of reduce_add8: out[i * kWide + part] of the i-th of four vectors.
HWY_INLINE void reduce_wide_x4(FWide a, FWide b, FWide c, FWide d, float* out) {
  const FWide four = add_neighbours(add_neighbours(a, b), add_neighbours(c, d));                  // a b c d in each 128 bits
  const FWide sums = hn::Add(four, FWide{_mm512_shuffle_f32x4(four.raw, four.raw, 0b10110001)});  // of part 0 in the lower half, of part 1 in the upper
  alignas(64) static constexpr int32_t kByVector[16] = {0, 8, 1, 9, 2, 10, 3, 11, 0, 8, 1, 9, 2, 10, 3, 11};
  store8(part<0>(hn::TableLookupLanes(sums, hn::SetTableIndices(DWide(), kByVector))), out);
}

#else

inline constexpr int kWide = 1;
using FWide = F8;

HWY_INLINE FWide zero_wide() { return zero8(); }
HWY_INLINE FWide set_wide(float x) { return set8(x); }
HWY_INLINE FWide load_wide(const float* p) { return load8(p); }
HWY_INLINE FWide load_wide_once(const float* p) { return load8(p); }
HWY_INLINE void store_wide(FWide a, float* p) { store8(a, p); }
HWY_INLINE FWide load_same(const float* p) { return load8_once(p); }
HWY_INLINE FWide load_apart(const float* p, int64_t /*stride*/) { return load8_once(p); }
template <int I>
HWY_INLINE F8 part(FWide a) {
  static_assert(I < kWide);
  return a;
}
HWY_INLINE void reduce_wide_x4(FWide a, FWide b, FWide c, FWide d, float* out) { reduce_add8x4(a, b, c, d, out); }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
