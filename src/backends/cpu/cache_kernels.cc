// Kernels over one cache row: finishing (norm, rotation, rounding), writing, decoding as a key; and the running softmax of the compressor.
// Decoding an fp8_ds_mla row takes 140 to 165 cycles (Zen 3) where it stays in L1, 2.4 a vector.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/cache_kernels.cc"
#include "hwy/foreach_target.h"

#include <algorithm>

#include "backends/cpu/decode-inl.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/rows-inl.h"
#include "backends/cpu/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

void finish_cache_row(const float* x, const uint16_t* norm, int64_t dim, float eps, const float* cos_sin, int64_t rope, bool hadamard, CacheRounding rounding,
                      float* out) {
  normalize_row(x, norm, dim, eps, out);
  rotate_row<false>(out + dim - rope, cos_sin, rope);
  if (hadamard) hadamard_row(out, dim);
  if (rounding == CacheRounding::kNone) return;
  if (hadamard) {
    for (int64_t i = 0; i < dim; i += kIndexGroup) round_e2m1_group(out + i, out + i);
  } else {
    for (int64_t i = 0; i < dim - rope; i += kMlaScaleGroup) round_e4m3_group(out + i, kMlaScaleGroup, out + i);
  }
}

// The same bytes as write_row (cache/paged_rows.h).
void write_cache_row(const PagedRows& rows, int64_t block, int64_t offset, const float* values) {
  if (rows.format != RowFormat::kFp8DsMla) {
    write_row(rows, block, offset, values);
    return;
  }
  uint8_t* data = rows.base + row_data_offset(rows, block, offset);
  uint8_t* scales = rows.base + row_scale_offset(rows, block, offset);
  for (int64_t g = 0; g < kMlaNopeDim / kMlaScaleGroup; ++g) {
    const float* x = values + g * kMlaScaleGroup;
    const float s = e4m3_group_scale(x, kMlaScaleGroup);
    scales[g] = s != s ? uint8_t{255} : e8m0_ceil(s);  // s is a power of two: its own code
    const F8 inverse = set8(1.0f / s);
    uint32_t rounded[kMlaScaleGroup];
    for (int64_t i = 0; i < kMlaScaleGroup; i += 8) {
      float r[8];
      store8(round_to_e4m3(mul(load8(x + i), inverse)), r);
      std::memcpy(rounded + i, r, sizeof(r));
    }
    // From the rounded value's bits to its code: exponent and mantissa shifted down, or the multiple of 2^-9.
    for (int64_t i = 0; i < kMlaScaleGroup; ++i) {
      const uint32_t a = rounded[i] & 0x7fffffffu, sign = rounded[i] >> 24 & 0x80u;
      const uint32_t normal = (a >> 20) - (120u << 3),
                     small = static_cast<uint32_t>(static_cast<int32_t>(std::bit_cast<float>(std::min(a, 0x3c800000u)) * 512.0f));
      const uint32_t code = a > 0x7f800000u ? 0x7fu : (a < 0x3c800000u ? small : normal) | sign;
      data[g * kMlaScaleGroup + i] = static_cast<uint8_t>(code);
    }
  }
  scales[7] = 0;
  for (int64_t i = 0; i < kMlaRopeDim; ++i) {
    const uint16_t b = float_to_bf16(values[kMlaNopeDim + i]);
    std::memcpy(data + kMlaNopeDim + 2 * i, &b, 2);
  }
}

// A key is a line in each of 32 slices: with AVX2 each store would wait for L2 if the lines of a later key were not asked for. With AVX-512 asking
// costs as much as it saves (Emerald Rapids) or more (Zen 5: 5 to 8 % of the attention of 16 rows).
inline constexpr int64_t kKeysAhead = kWide > 1 ? 0 : 4;
HWY_INLINE float* key_slice(const DecodedKeys& to, int64_t key, int64_t d) { return to.values + d / kSliceDim * to.slice_stride + key * kSliceDim; }

// A group of kMlaScaleGroup E4M3 codes times its scale into a key's slices, `stride` floats apart, the first of which is `out`.
HWY_INLINE void decode_mla_group_plain(const uint8_t* codes, float scale, float* out, int64_t stride) {
  for (int64_t i = 0; i < kMlaScaleGroup; ++i) out[i / kSliceDim * stride + i % kSliceDim] = e4m3_to_float(codes[i]) * scale;
}

#if DSV4_CPU_PORTABLE_LANES

HWY_INLINE bool decode_mla_group(const uint8_t* /*codes*/, uint8_t /*scale*/, float* /*out*/, int64_t /*stride*/) { return false; }

#else

// The cheap decode of weights (decode-inl.h), values in natural order: each code moves to the top of a 32-bit lane; shifted by four its bits are
// those of the value times 2^-120, and 2^120 rides on the scale. False: a code is NaN or the scale too large for that, the plain decode is due.
HWY_INLINE bool decode_mla_group(const uint8_t* codes, uint8_t scale, float* out, int64_t stride) {
  using DBytes = hn::CappedTag<uint8_t, 32 * kWide>;
  using DInts = hn::CappedTag<int32_t, 8 * kWide>;
  const DBytes bytes;
  constexpr uint8_t kNone = 0x80;  // a zero byte
  alignas(64) static constexpr uint8_t kToTop[kSliceDim * 4] = {
      kNone, kNone, kNone, 0,     kNone, kNone, kNone, 1,     kNone, kNone, kNone, 2,     kNone, kNone, kNone, 3,     kNone, kNone, kNone, 4,     kNone, kNone,
      kNone, 5,     kNone, kNone, kNone, 6,     kNone, kNone, kNone, 7,     kNone, kNone, kNone, 8,     kNone, kNone, kNone, 9,     kNone, kNone, kNone, 10,
      kNone, kNone, kNone, 11,    kNone, kNone, kNone, 12,    kNone, kNone, kNone, 13,    kNone, kNone, kNone, 14,    kNone, kNone, kNone, 15};
  const FWide factor = set_wide(kFp8FoldedScale[scale]);
  const auto keep = hn::Set(DInts(), static_cast<int32_t>(0x87f00000u));
  auto top = hn::Zero(bytes);
  for (int64_t i = 0; i < kMlaScaleGroup; i += kSliceDim, out += stride) {
    const auto copies = hn::LoadDup128(bytes, codes + i);
    top = hn::Max(top, hn::Or(copies, hn::Set(bytes, uint8_t{0x80})));
    if constexpr (kKeysAhead > 0) __builtin_prefetch(out + kKeysAhead * kSliceDim, 1);
    for (int64_t v = 0; v < kSliceDim; v += 8 * kWide) {
      const auto lanes = hn::BitCast(DInts(), hn::TableLookupBytesOr0(copies, hn::Load(bytes, kToTop + 4 * v)));
      store_wide(mul(hn::BitCast(hn::CappedTag<float, 8 * kWide>(), hn::And(hn::ShiftRight<4>(lanes), keep)), factor), out + v);
    }
  }
  return scale <= kLargestFoldedScale && hn::AllFalse(bytes, hn::Eq(top, hn::Set(bytes, uint8_t{0xff})));
}

#endif

void read_key(const PagedRows& rows, int64_t block, int64_t offset, const DecodedKeys& to, int64_t key) {
  const uint8_t* data = rows.base + row_data_offset(rows, block, offset);
  switch (rows.format) {
    case RowFormat::kF32: {
      const int64_t dim = rows.row_dim;
      for (int64_t d = 0; d < dim; d += kSliceDim) {
        float* out = key_slice(to, key, d);
        const int64_t count = std::min(kSliceDim, dim - d);
        if (count < kSliceDim) std::memset(out, 0, kSliceDim * sizeof(float));
        std::memcpy(out, data + 4 * d, static_cast<size_t>(count) * sizeof(float));
      }
      return;
    }
    case RowFormat::kFp8DsMla: {
      const uint8_t* scales = rows.base + row_scale_offset(rows, block, offset);
      for (int64_t g = 0; g < kMlaNopeDim / kMlaScaleGroup; ++g) {
        const uint8_t* codes = data + g * kMlaScaleGroup;
        float* out = key_slice(to, key, g * kMlaScaleGroup);
        if (HWY_LIKELY(decode_mla_group(codes, scales[g], out, to.slice_stride))) continue;
        decode_mla_group_plain(codes, e8m0_to_float(scales[g]), out, to.slice_stride);
      }
      for (int64_t i = 0; i < kMlaRopeDim; i += kSliceDim) {
        uint16_t b[kSliceDim];
        std::memcpy(b, data + kMlaNopeDim + 2 * i, sizeof(b));
        float* out = key_slice(to, key, kMlaNopeDim + i);
        store8(load8_bf16(b), out);
        store8(load8_bf16(b + 8), out + 8);
      }
      return;
    }
    case RowFormat::kMxfp4: {
      const uint8_t* scales = rows.base + row_scale_offset(rows, block, offset);
      for (int64_t g = 0; g < rows.row_dim / 32; ++g) {
        F8 w[4];
        Fp8Watch watch;
        decode_group(data, RunScale<WeightFormat::kMxfp4>(scales, g / 4, watch), g, w, watch);
        store_mxfp4_half(w[0], w[1], key_slice(to, key, 32 * g));
        store_mxfp4_half(w[2], w[3], key_slice(to, key, 32 * g + 16));
      }
      return;
    }
  }
}

// m' = max(m, g); l = l e^(m-m') + e^(g-m'); a = a e^(m-m') + c e^(g-m'). One of the two exponentials is e^0 = 1, exactly.
void compressor_feed(float* state, int64_t plane, const float* kv, const float* gate, const float* ape, int64_t n) {
  const auto step = [](F8& top, F8& sum, F8& weighted, F8 c, F8 g) HWY_ATTR {
    const F8 one = set8(1.0f), rises_by = sub(g, top);
    const F8 decay = exp8(sub(zero8(), abs8(rises_by)));
    const Mask8 rises = lt8(top, g);
    const F8 keep = select8(rises, decay, one), gain = select8(rises, one, decay);
    top = max8(g, top);
    sum = fma(sum, keep, gain);
    weighted = fma(weighted, keep, mul(gain, c));
  };
  int64_t d = 0;
  for (; d + 8 <= n; d += 8) {
    F8 top = load8(state + d), sum = load8(state + plane + d), weighted = load8(state + 2 * plane + d);
    step(top, sum, weighted, load8(kv + d), add(load8(gate + d), load8(ape + d)));
    store8(top, state + d);
    store8(sum, state + plane + d);
    store8(weighted, state + 2 * plane + d);
  }
  if (d < n) {
    const size_t rest = static_cast<size_t>(n - d) * sizeof(float);
    float s[3][8] = {}, in[3][8] = {};
    for (int i = 0; i < 3; ++i) std::memcpy(s[i], state + i * plane + d, rest);
    std::memcpy(in[0], kv + d, rest);
    std::memcpy(in[1], gate + d, rest);
    std::memcpy(in[2], ape + d, rest);
    F8 top = load8(s[0]), sum = load8(s[1]), weighted = load8(s[2]);
    step(top, sum, weighted, load8(in[0]), add(load8(in[1]), load8(in[2])));
    store8(top, s[0]);
    store8(sum, s[1]);
    store8(weighted, s[2]);
    for (int i = 0; i < 3; ++i) std::memcpy(state + i * plane + d, s[i], rest);
  }
}

void compressor_result(const float* state, int64_t plane, int64_t n, float* out) {
  int64_t d = 0;
  for (; d + 8 <= n; d += 8) store8(div(load8(state + 2 * plane + d), load8(state + plane + d)), out + d);
  for (; d < n; ++d) out[d] = state[2 * plane + d] / state[plane + d];
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4 {

HWY_EXPORT(finish_cache_row);
HWY_EXPORT(write_cache_row);
HWY_EXPORT(read_key);
HWY_EXPORT(compressor_feed);
HWY_EXPORT(compressor_result);

void add_cache_kernels(CpuIsa isa, CpuKernels& k) {
  k.finish_cache_row = DSV4_CPU_KERNEL(finish_cache_row, isa);
  k.write_cache_row = DSV4_CPU_KERNEL(write_cache_row, isa);
  k.read_key = DSV4_CPU_KERNEL(read_key, isa);
  k.compressor_feed = DSV4_CPU_KERNEL(compressor_feed, isa);
  k.compressor_result = DSV4_CPU_KERNEL(compressor_result, isa);
}

}  // namespace dsv4
#endif
