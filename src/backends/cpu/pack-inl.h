// Activations as products read them: float32, optionally through the E4M3 rounding, K padded with zeros to a multiple of 32, in the
// order of the weight's format, and cut into blocks of kBlockK values of K that hold all rows: a panel of rows of one block is
// contiguous (rows 16 KiB apart would fall into the same L1 sets).
#if defined(DSV4_CPU_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_PACK_INL_H_
#undef DSV4_CPU_PACK_INL_H_
#else
#define DSV4_CPU_PACK_INL_H_
#endif

#include "backends/cpu/decode_tables.h"
#include "backends/cpu/math-inl.h"
#include "backends/cpu/packed_rows.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

// One group of 32 floats into the order of the weight's format.
HWY_INLINE void pack_group(const float* x, PackOrder order, float* out) {
#if DSV4_CPU_PORTABLE_LANES
  for (int i = 0; i < 32; ++i) out[i] = x[order == PackOrder::kMxfp4 ? kMxfp4Order[i] : order == PackOrder::kFp8 ? kFp8Order[i] : i];
#else
  const D8 d;
  const F8 x0 = load8(x), x1 = load8(x + 8), x2 = load8(x + 16), x3 = load8(x + 24);
  F8 v0 = x0, v1 = x1, v2 = x2, v3 = x3;
  if (order != PackOrder::kNatural) {
    const F8 even_low = hn::ConcatEven(d, x1, x0), odd_low = hn::ConcatOdd(d, x1, x0);    // 0 2 .. 14, 1 3 .. 15
    const F8 even_high = hn::ConcatEven(d, x3, x2), odd_high = hn::ConcatOdd(d, x3, x2);  // 16 18 .. 30, 17 19 .. 31
    const bool fp8 = order == PackOrder::kFp8;
    const F8 a = even_low, b = fp8 ? even_high : odd_low, c = fp8 ? odd_low : even_high, e = odd_high;
    v0 = hn::ConcatEven(d, b, a);
    v1 = hn::ConcatOdd(d, b, a);
    v2 = hn::ConcatEven(d, e, c);
    v3 = hn::ConcatOdd(d, e, c);
  }
  store8(v0, out);
  store8(v1, out + 8);
  store8(v2, out + 16);
  store8(v3, out + 24);
#endif
}

// n values from offset k0 (a multiple of 32) of a row into place; the last group is padded.
HWY_INLINE void pack_values(const float* x, int64_t k0, int64_t n, PackOrder order, const PackedRows& to, int64_t row) {
  for (int64_t i = 0; i < n; i += 32) {
    float padded[32];
    const float* group = x + i;
    if (n - i < 32) {
      std::memset(padded, 0, sizeof(padded));
      std::memcpy(padded, group, static_cast<size_t>(n - i) * sizeof(float));
      group = padded;
    }
    pack_group(group, order, to.group(row, (k0 + i) / 32));
  }
}

// A group of n <= 128 values through a rounding; E4M3 is for whole groups. out may be x.
HWY_INLINE void round_activations(const float* x, int64_t n, ActivationRounding rounding, float* out) {
  if (rounding == ActivationRounding::kE4M3) round_e4m3_group(x, kActivationGroup, out);
  if (rounding == ActivationRounding::kBF16) round_bf16(x, n, out);
}

HWY_INLINE void pack_row(const float* x, int64_t k, ActivationRounding rounding, PackOrder order, const PackedRows& to, int64_t row) {
  if (rounding == ActivationRounding::kNone) {
    pack_values(x, 0, k, order, to, row);
    return;
  }
  for (int64_t i = 0; i < k; i += kActivationGroup) {
    const int64_t count = k - i < kActivationGroup ? k - i : kActivationGroup;
    float rounded[kActivationGroup];
    round_activations(x + i, count, rounding, rounded);
    pack_values(rounded, i, count, order, to, row);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
