// Packed weights of as many outputs as a wide vector has parts (wide-inl.h), decoded side by side: with one part, decode_group.
#if defined(DSV4_CPU_DECODE_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_DECODE_WIDE_INL_H_
#undef DSV4_CPU_DECODE_WIDE_INL_H_
#else
#define DSV4_CPU_DECODE_WIDE_INL_H_
#endif

#include "backends/cpu/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

#if DSV4_CPU_AVX512

// What the groups of one run of 128 values share, per output.
template <WeightFormat F>
struct WideScale {
  const uint8_t* scales[kWide];
  HWY_INLINE WideScale(const uint8_t* const (&s)[kWide], int64_t /*run*/, Fp8Watch&) {
    for (int i = 0; i < kWide; ++i) scales[i] = s[i];
  }
};
template <>
struct WideScale<WeightFormat::kFp8Block> {
  FWide scale;
  HWY_INLINE WideScale(const uint8_t* const (&s)[kWide], int64_t run, Fp8Watch& watch) {
    F8 parts[kWide];
    for (int i = 0; i < kWide; ++i) parts[i] = RunScale<WeightFormat::kFp8Block>(s[i], run, watch).scale;
    scale = join(parts);
  }
};

using DWideBytes = hn::CappedTag<uint8_t, 64>;

// Sixteen bytes of each output, twice.
HWY_INLINE hn::Vec<DWideBytes> load_twice(const uint8_t* first, const uint8_t* second) {
  const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)));
  return hn::Vec<DWideBytes>{_mm512_mask_broadcast_i32x4(all, 0xff00, _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)))};
}

// Group g of the rows, in the order of decode_group.
template <WeightFormat F>
HWY_INLINE void decode_wide(const uint8_t* const (&rows)[kWide], const WideScale<F>& run, int64_t g, FWide (&w)[4], Fp8Watch& watch) {
  if constexpr (F == WeightFormat::kFp8Block) {
    const auto *a = rows[0] + 32 * g, *b = rows[1] + 32 * g;
    watch.note(hn::LoadU(DBytes32(), a));
    watch.note(hn::LoadU(DBytes32(), b));
    const __m512i both = _mm512_inserti32x8(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a))),
                                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)), 1);
    decode_fp8(DWideBytes(), hn::Vec<DWideBytes>{both}, run.scale, w);
  } else if constexpr (F == WeightFormat::kMxfp4) {
    const auto *a = kMxfp4Bf16Tables.bytes[run.scales[0][g]], *b = kMxfp4Bf16Tables.bytes[run.scales[1][g]];
    decode_mxfp4(DWideBytes(), load_twice(rows[0] + 16 * g, rows[1] + 16 * g), load_twice(a, b), load_twice(a + 16, b + 16), w);
  } else if constexpr (F == WeightFormat::kBF16) {
    for (int64_t j = 0; j < 4; ++j) {
      const auto *a = rows[0] + 64 * g + 16 * j, *b = rows[1] + 64 * g + 16 * j;
      const __m256i words = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
      w[j] = FWide{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16))};
    }
  } else {
    const auto* from = reinterpret_cast<const float*>(rows[0]) + 32 * g;
    for (int64_t j = 0; j < 4; ++j) w[j] = load_apart(from + 8 * j, reinterpret_cast<const float*>(rows[1]) - reinterpret_cast<const float*>(rows[0]));
  }
}

#else

template <WeightFormat F>
struct WideScale : RunScale<F> {
  HWY_INLINE WideScale(const uint8_t* const (&s)[kWide], int64_t run, Fp8Watch& watch) : RunScale<F>(s[0], run, watch) {}
};
template <WeightFormat F>
HWY_INLINE void decode_wide(const uint8_t* const (&rows)[kWide], const WideScale<F>& run, int64_t g, FWide (&w)[4], Fp8Watch& watch) {
  decode_group<F>(rows[0], run, g, w, watch);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
