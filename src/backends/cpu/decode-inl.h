// Packed weights to lanes. The unit is a group of 32 values of K, decoded into four F8. Values are exactly those of decode_weight_row
// (tensor/weight.h), scale included, so every product is w * x with the true float32 weight.
//
// Order inside a group: natural for F32 and BF16; for FP8 and MXFP4 the order the cheap decodes yield (decode_tables.h). Activations
// are packed in the same order (pack-inl.h), so lane l of vector j always multiplies the same k.
#if defined(DSV4_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_DECODE_INL_H_
#undef DSV4_CPU_DECODE_INL_H_
#else
#define DSV4_CPU_DECODE_INL_H_
#endif

#include <algorithm>

#include "backends/cpu/decode_tables.h"
#include "backends/cpu/wide-inl.h"
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
    const int64_t k = 32 * g + (F == WeightFormat::kMxfp4 ? kMxfp4Order[i] : F == WeightFormat::kFp8Block ? kFp8Order[i] : i);
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

// Notes FP8 codes the cheap decode gets wrong; the portable decode gets none wrong.
struct Fp8Watch {
  HWY_INLINE bool seen() const { return false; }
};

// What the groups of one run of 128 values share.
template <WeightFormat F>
struct RunScale {
  const uint8_t* scales;
  HWY_INLINE RunScale(const uint8_t* s, int64_t /*run*/, Fp8Watch&) : scales(s) {}
};

template <WeightFormat F>
HWY_INLINE void decode_group(const uint8_t* row, const RunScale<F>& scale, int64_t g, F8 (&w)[4], Fp8Watch&) {
  float values[32];
  decode_group_plain<F>(row, scale.scales, g, 32, values);
  load_group(values, w);
}

#else

using DBytes32 = hn::CappedTag<uint8_t, 32>;

// The steps from packed codes to values, for one group (vectors of 32 bytes) or for one group of each output of a wide vector.

// A float with the code's exponent and mantissa bits on top of its own, shifted to bit 26, is e4m3 * 2^-120: subnormal codes become subnormal
// floats of the same value. 2^120 rides on the block's scale; the product is exact. Even and odd bytes go through words (sign spread by the
// arithmetic shift), even and odd words through a shift and a mask.
template <class DBytes, class V>
HWY_INLINE void decode_fp8(DBytes /*tag*/, hn::Vec<DBytes> packed, V scale, V (&w)[4]) {
  const hn::Repartition<int16_t, DBytes> words;
  const hn::Repartition<uint32_t, DBytes> bits;
  const hn::Repartition<float, DBytes> floats;
  const auto codes = hn::BitCast(words, packed), keep = hn::Set(words, static_cast<int16_t>(0x87f0));
  const auto upper = hn::Set(bits, 0xffff0000u);
  const auto even = hn::BitCast(bits, hn::And(hn::ShiftRight<4>(hn::ShiftLeft<8>(codes)), keep));
  w[0] = mul(hn::BitCast(floats, hn::ShiftLeft<16>(even)), scale);
  w[1] = mul(hn::BitCast(floats, hn::And(even, upper)), scale);
  const auto odd = hn::BitCast(bits, hn::And(hn::ShiftRight<4>(codes), keep));
  w[2] = mul(hn::BitCast(floats, hn::ShiftLeft<16>(odd)), scale);
  w[3] = mul(hn::BitCast(floats, hn::And(odd, upper)), scale);
}

// The group's 16 bytes stand twice in `copies`. Low nibbles of the lower copy, high nibbles of the upper one; two table look-ups give the two
// bytes of each value's bfloat16, already scaled (a power of two times an e2m1 value is a bfloat16, down to the subnormals); pairs of them
// widen by a shift and a mask.
template <class DBytes, class V>
HWY_INLINE void decode_mxfp4(DBytes bytes, hn::Vec<DBytes> copies, hn::Vec<DBytes> low_bytes, hn::Vec<DBytes> high_bytes, V (&w)[4]) {
  const hn::Repartition<uint32_t, DBytes> bits;
  const hn::Repartition<float, DBytes> floats;
  alignas(64) static constexpr uint32_t kShift[16] = {0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4};
  const auto nibbles = hn::And(hn::BitCast(bytes, hn::Shr(hn::BitCast(bits, copies), hn::Load(bits, kShift))), hn::Set(bytes, uint8_t{0x0f}));
  const auto low = hn::TableLookupBytes(low_bytes, nibbles), high = hn::TableLookupBytes(high_bytes, nibbles);
  const auto upper = hn::Set(bits, 0xffff0000u);
  const auto first = hn::BitCast(bits, hn::InterleaveLower(bytes, low, high));
  w[0] = hn::BitCast(floats, hn::ShiftLeft<16>(first));
  w[1] = hn::BitCast(floats, hn::And(first, upper));
  const auto second = hn::BitCast(bits, hn::InterleaveUpper(bytes, low, high));
  w[2] = hn::BitCast(floats, hn::ShiftLeft<16>(second));
  w[3] = hn::BitCast(floats, hn::And(second, upper));
}

// The cheap FP8 decode reads NaN codes as 480, and its folded scale overflows for codes above kLargestFoldedScale. Both are noted (two
// operations per 32 weights) and the caller then decodes that piece plainly: exact on all 256 codes and all scales.
struct Fp8Watch {
  hn::Vec<DBytes32> top;
  bool large_scale;
  HWY_INLINE Fp8Watch() : top(hn::Zero(DBytes32())), large_scale(false) {}
  HWY_INLINE void note(hn::Vec<DBytes32> codes) { top = hn::Max(top, hn::Or(codes, hn::Set(DBytes32(), uint8_t{0x80}))); }
  HWY_INLINE bool seen() const { return large_scale || !hn::AllFalse(DBytes32(), hn::Eq(top, hn::Set(DBytes32(), uint8_t{0xff}))); }
};

// What the groups of one run of 128 values share: the scale of an FP8 block.
template <WeightFormat F>
struct RunScale {
  const uint8_t* scales;
  HWY_INLINE RunScale(const uint8_t* s, int64_t /*run*/, Fp8Watch&) : scales(s) {}
};
template <>
struct RunScale<WeightFormat::kFp8Block> {
  F8 scale;
  HWY_INLINE RunScale(const uint8_t* s, int64_t run, Fp8Watch& watch) : scale(set8(kFp8FoldedScale[s[run]])) {
    watch.large_scale |= s[run] > kLargestFoldedScale;
  }
};

template <WeightFormat F>
HWY_INLINE void decode_group(const uint8_t* row, const RunScale<F>& run, int64_t g, F8 (&w)[4], Fp8Watch& watch) {
  if constexpr (F == WeightFormat::kF32) {
    load_group(reinterpret_cast<const float*>(row) + 32 * g, w);
  } else if constexpr (F == WeightFormat::kBF16) {
    const auto* p = reinterpret_cast<const uint16_t*>(row) + 32 * g;
    for (int j = 0; j < 4; ++j) w[j] = load8_bf16(p + 8 * j);
  } else if constexpr (F == WeightFormat::kFp8Block) {
    const auto packed = hn::LoadU(DBytes32(), row + 32 * g);
    watch.note(packed);
    decode_fp8(DBytes32(), packed, run.scale, w);
  } else {
    const auto* table = kMxfp4Bf16Tables.bytes[run.scales[g]];
    decode_mxfp4(DBytes32(), hn::LoadDup128(DBytes32(), row + 16 * g), hn::LoadDup128(DBytes32(), table), hn::LoadDup128(DBytes32(), table + 16), w);
  }
}

#endif

// Vectors 0 and 1, or 2 and 3, of a decoded MXFP4 group: its 16 values in natural order.
HWY_INLINE void store_mxfp4_half(F8 a, F8 b, float* out) {
#if DSV4_CPU_PORTABLE_LANES
  float packed[16];
  store8(a, packed);
  store8(b, packed + 8);
  for (int i = 0; i < 16; ++i) out[kMxfp4Order[i]] = packed[i];
#else
  const D8 d;
  alignas(32) static constexpr int32_t kWeave[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  const auto weave = hn::SetTableIndices(d, kWeave);
  store8(hn::TableLookupLanes(hn::InterleaveLower(d, a, b), weave), out);      // 0 2 4 6 | 1 3 5 7
  store8(hn::TableLookupLanes(hn::InterleaveUpper(d, a, b), weave), out + 8);  // 8 10 12 14 | 9 11 13 15
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
