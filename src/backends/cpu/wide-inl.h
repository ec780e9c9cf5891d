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

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

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
HWY_INLINE FWide load_apart(const float* p, int64_t stride) { return FWide{_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p)), _mm256_loadu_ps(p + stride), 1)}; }
template <int I>
HWY_INLINE F8 part(FWide a) {
  static_assert(I < kWide);
  return F8{_mm512_extractf32x8_ps(a.raw, I)};
}
// The sums over lanes of each F8, by the tree of reduce_add8: out[i * kWide + part] of the i-th of four vectors. The steps are those of reduced8x4.
HWY_INLINE void reduce_wide_x4(FWide a, FWide b, FWide c, FWide d, float* out) {
  const DWide tag;
  const hn::RepartitionToWide<DWide> wide;  // pairs of floats
  const auto pairs = [](FWide x, FWide y) HWY_ATTR { return hn::Add(hn::OddEven(hn::Shuffle2301(y), x), hn::OddEven(y, hn::Shuffle2301(x))); };
  const auto ab = hn::BitCast(wide, pairs(a, b)), cd = hn::BitCast(wide, pairs(c, d));
  const FWide four = hn::Add(hn::BitCast(tag, hn::InterleaveLower(wide, ab, cd)), hn::BitCast(tag, hn::InterleaveUpper(wide, ab, cd)));  // a b c d four times
  const FWide sums = hn::Add(four, FWide{_mm512_shuffle_f32x4(four.raw, four.raw, 0b10110001)});                                           // blocks 1 0 3 2
  alignas(64) static constexpr int32_t kByVector[16] = {0, 8, 1, 9, 2, 10, 3, 11, 0, 8, 1, 9, 2, 10, 3, 11};
  store8(part<0>(hn::TableLookupLanes(sums, hn::SetTableIndices(tag, kByVector))), out);
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
