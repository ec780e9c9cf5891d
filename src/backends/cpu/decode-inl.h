// Packed weights to lanes. The unit is a group of 32 values of K, decoded into four F8. Values are exactly those of decode_weight_row
// (tensor/weight.h), scale included, so every product is w * x with the true float32 weight.
//
// Order inside a group: natural for F32, BF16 and FP8; for MXFP4 the order the cheap decode yields, kMxfp4Order. Activations are
// packed in the same order (pack-inl.h), so lane l of vector j always multiplies the same k.
#if defined(DSV4_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_DECODE_INL_H_
#undef DSV4_CPU_DECODE_INL_H_
#else
#define DSV4_CPU_DECODE_INL_H_
#endif

#include <algorithm>

#include "backends/cpu/decode_tables.h"
#include "backends/cpu/lanes-inl.h"
#include "tensor/dtype.h"
#include "tensor/weight.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

// Group g of a row by plain arithmetic, values beyond `count` zero: what the portable target runs, and every target for the last, short
// group of a row and for FP8 blocks the cheap decode does not cover.
template <WeightFormat F>
HWY_INLINE void decode_group_plain(const uint8_t* row, const uint8_t* scales, int64_t g, int64_t count, float* out) {
  for (int i = 0; i < 32; ++i) {
    const int64_t k = 32 * g + (F == WeightFormat::kMxfp4 ? kMxfp4Order[i] : i);
    if (k >= 32 * g + count) {
      out[i] = 0;
    } else if constexpr (F == WeightFormat::kF32) {
      std::memcpy(out + i, row + 4 * k, 4);
    } else if constexpr (F == WeightFormat::kBF16) {
      uint16_t b;
      std::memcpy(&b, row + 2 * k, 2);
      out[i] = bf16_to_float(b);
    } else if constexpr (F == WeightFormat::kFp8Block) {
      out[i] = e4m3_to_float(row[k]) * e8m0_to_float(scales[k / kFp8WeightBlock]);
    } else {
      const uint8_t nibble = static_cast<uint8_t>(k % 2 == 0 ? row[k / 2] & 15 : row[k / 2] >> 4);
      out[i] = e2m1_to_float(nibble) * e8m0_to_float(scales[g]);
    }
  }
}

HWY_INLINE void load_group(const float* p, F8 (&w)[4]) {
  for (int j = 0; j < 4; ++j) w[j] = load8(p + 8 * j);
}

#if DSV4_CPU_PORTABLE_LANES

// Notes FP8 bytes the cheap decode gets wrong; the portable decode gets none wrong.
struct Fp8Watch {
  HWY_INLINE bool seen() const { return false; }
};

template <WeightFormat F>
HWY_INLINE void decode_group(const uint8_t* row, const uint8_t* scales, int64_t g, F8 (&w)[4], Fp8Watch&) {
  float values[32];
  decode_group_plain<F>(row, scales, g, 32, values);
  load_group(values, w);
}

#else

using DBytes16 = hn::CappedTag<uint8_t, 16>;
using DBytes32 = hn::CappedTag<uint8_t, 32>;
using DWords = hn::CappedTag<uint16_t, 16>;

// The cheap FP8 decode reads NaN codes as 480, and its scale times 2^8 overflows for codes above 246. Both are noted (two cheap
// operations per 32 weights) and the caller then decodes that piece plainly: exact on all 256 codes and all scales.
struct Fp8Watch {
  hn::Vec<DBytes32> top;
  bool large_scale;
  HWY_INLINE Fp8Watch() : top(hn::Zero(DBytes32())), large_scale(false) {}
  HWY_INLINE bool seen() const { return large_scale || !hn::AllFalse(DBytes32(), hn::Eq(top, hn::Set(DBytes32(), uint8_t{0xff}))); }
};

template <WeightFormat F>
HWY_INLINE void decode_group(const uint8_t* row, const uint8_t* scales, int64_t g, F8 (&w)[4], Fp8Watch& watch) {
  if constexpr (F == WeightFormat::kF32) {
    load_group(reinterpret_cast<const float*>(row) + 32 * g, w);
  } else if constexpr (F == WeightFormat::kBF16) {
    const auto* p = reinterpret_cast<const uint16_t*>(row) + 32 * g;
    for (int j = 0; j < 4; ++j) w[j] = load8_bf16(p + 8 * j);
  } else if constexpr (F == WeightFormat::kFp8Block) {
    // As a half float, sign | exponent and mantissa << 7 is e4m3 * 2^-8, subnormals included; the conversion is exact, and the factor
    // 2^8 rides on the block's scale.
    const uint8_t code = scales[g / 4];
    watch.large_scale |= code > kLargestFoldedScale;
    const F8 scale = set8(kFp8ScaleTimes256[code]);
    const uint8_t* p = row + 32 * g;
    watch.top = hn::Max(watch.top, hn::Or(hn::LoadU(DBytes32(), p), hn::Set(DBytes32(), uint8_t{0x80})));
    const hn::RebindToSigned<DWords> di;
    const hn::CappedTag<int8_t, 16> d8;
    const hn::Half<decltype(di)> half;
    const hn::CappedTag<hwy::float16_t, 8> d16;
    for (int j = 0; j < 2; ++j) {
      const auto words = hn::ShiftLeft<7>(hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p + 16 * j))));
      const auto halves = hn::And(words, hn::Set(di, static_cast<int16_t>(0xbf80)));
      w[2 * j] = mul(hn::PromoteTo(D8(), hn::BitCast(d16, hn::LowerHalf(half, halves))), scale);
      w[2 * j + 1] = mul(hn::PromoteTo(D8(), hn::BitCast(d16, hn::UpperHalf(half, halves))), scale);
    }
  } else {
    // 16 bytes -> 32 nibbles in bytes; two table look-ups give the two bytes of each value's bfloat16, already scaled (a power of two
    // times an e2m1 value is a bfloat16, down to the subnormals); pairs of them widen by a shift and a mask.
    const auto* table = kMxfp4Bf16Tables.bytes[scales[g]];
    const auto low_bytes = hn::LoadDup128(DBytes32(), table), high_bytes = hn::LoadDup128(DBytes32(), table + 16);
    const auto packed = hn::PromoteTo(DWords(), hn::LoadU(DBytes16(), row + 16 * g));
    const auto nibbles =
        hn::BitCast(DBytes32(), hn::And(hn::Or(packed, hn::ShiftLeft<4>(packed)), hn::Set(DWords(), uint16_t{0x0f0f})));
    const auto low = hn::TableLookupBytes(low_bytes, nibbles), high = hn::TableLookupBytes(high_bytes, nibbles);
    const auto first = hn::BitCast(DU8(), hn::InterleaveLower(DBytes32(), low, high));
    const auto second = hn::BitCast(DU8(), hn::InterleaveUpper(DBytes32(), low, high));
    const auto upper = hn::Set(DU8(), 0xffff0000u);
    w[0] = hn::BitCast(D8(), hn::ShiftLeft<16>(first));
    w[1] = hn::BitCast(D8(), hn::And(first, upper));
    w[2] = hn::BitCast(D8(), hn::ShiftLeft<16>(second));
    w[3] = hn::BitCast(D8(), hn::And(second, upper));
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
