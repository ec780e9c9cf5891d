// Device codecs of stored elements, by hand: exact on every code and on any card. The definitions are those of tensor/dtype.h and
// tensor/rounding.h; encoders give the same codes.
#pragma once

#include <cstdint>

#include "backends/gpu/runtime/kernel.h"
#include "backends/gpu/weight_layout.h"
#include "tensor/weight.h"

namespace dsv4::gpu {

__device__ inline float bits_to_float(uint32_t u) { return __uint_as_float(u); }
__device__ inline float decode_bf16(uint16_t b) { return bits_to_float(static_cast<uint32_t>(b) << 16); }

__device__ inline uint16_t encode_bf16(float x) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

__device__ inline float decode_e4m3(uint8_t c) {
  const uint32_t sign = static_cast<uint32_t>(c & 0x80u) << 24, magnitude = c & 0x7fu;
  if (magnitude == 0x7fu) return bits_to_float(0x7fc00000u);
  if (magnitude < 8u) return bits_to_float(__float_as_uint(static_cast<float>(magnitude) * 0.001953125f) | sign);
  return bits_to_float(sign | ((magnitude << 20) + (120u << 23)));
}

__device__ inline uint8_t encode_e4m3(float x) {
  const uint32_t u = __float_as_uint(x), a = u & 0x7fffffffu;
  const uint32_t sign = (u >> 24) & 0x80u;
  if (a > 0x7f800000u) return 0x7f;
  if (a >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);
  if (a < 0x3c800000u) return static_cast<uint8_t>(sign | static_cast<uint32_t>(rintf(bits_to_float(a) * 512.0f)));
  const uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

__device__ inline float decode_e8m0(uint8_t c) {
  if (c == 255) return bits_to_float(0x7fc00000u);
  return bits_to_float(c == 0 ? 0x00400000u : static_cast<uint32_t>(c) << 23);
}

__device__ inline float decode_e2m1(uint32_t nibble) {
  const uint32_t magnitude = nibble & 7u;
  const float v = magnitude < 2u ? 0.5f * static_cast<float>(magnitude) : bits_to_float(((magnitude >> 1) + 126u) << 23 | (magnitude & 1u) << 22);
  return (nibble & 8u) != 0 ? -v : v;
}

__device__ inline uint8_t encode_e2m1(float x) {
  const float a = fabsf(x);
  const int code = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code | (__float_as_uint(x) >> 31 << 3));
}

__device__ inline uint8_t e8m0_ceil_code(float x) {
  const uint32_t u = __float_as_uint(x);
  return static_cast<uint8_t>((u >> 23) + ((u & 0x7fffffu) != 0 ? 1u : 0u));
}
// Scale codes from the largest magnitude of a group.
__device__ inline uint8_t e4m3_scale_of(float amax) { return e8m0_ceil_code(fmaxf(amax, 1e-4f) * (1.0f / 448.0f)); }
__device__ inline uint8_t e2m1_scale_of(float amax) {
  const uint8_t code = e8m0_ceil_code(fmaxf(amax, 6.0f * 1.17549435e-38f) * (1.0f / 6.0f));
  return code < 1 ? 1 : code;
}
__device__ inline float round_e4m3_by(float x, float scale) { return decode_e4m3(encode_e4m3(x / scale)) * scale; }
__device__ inline float round_e2m1_by(float x, float scale) { return decode_e2m1(encode_e2m1(x / scale)) * scale; }

// A packed weight, row-major or in strips.
struct PackedRows {
  WeightFormat format;
  bool strips;
  const uint8_t* data;
  const uint8_t* scale;
  int64_t k;
};
inline PackedRows packed_rows(const GpuContext& gpu, const WeightView& w) {
  return {w.format, gpu.strips && fits_strips(w.format, w.n, w.k), w.data, w.scale, w.k};
}

// Any element of any layout, one at a time.
__device__ inline float strip_value(const PackedRows& w, int64_t n, int64_t k) {
  const PairPlace place = strip_pair(w.format, n, k / 2 * 2, w.k);
  const int odd = static_cast<int>(k % 2);
  if (w.format == WeightFormat::kBF16) return decode_bf16(reinterpret_cast<const uint16_t*>(w.data + place.byte)[odd]);
  if (w.format == WeightFormat::kFp8Block)
    return decode_e4m3(w.data[place.byte + odd]) * decode_e8m0(w.scale[n / kFp8WeightBlock * (w.k / kFp8WeightBlock) + k / kFp8WeightBlock]);
  const uint32_t half = strip_mxfp4_pair(*reinterpret_cast<const uint32_t*>(w.data + place.byte), place.pair) >> (16 * odd);
  const uint32_t nibble = (half >> 9 & 7u) | (half >> 15 & 1u) << 3;
  return decode_e2m1(nibble) * decode_e8m0(w.scale[strip_mxfp4_scale(n, k, w.k)]);
}

__device__ inline float weight_value(const PackedRows& w, int64_t n, int64_t k) {
  if (w.strips) return strip_value(w, n, k);
  switch (w.format) {
    case WeightFormat::kF32: return reinterpret_cast<const float*>(w.data)[n * w.k + k];
    case WeightFormat::kBF16: return decode_bf16(reinterpret_cast<const uint16_t*>(w.data)[n * w.k + k]);
    case WeightFormat::kFp8Block:
      return decode_e4m3(w.data[n * w.k + k]) *
             decode_e8m0(w.scale[n / kFp8WeightBlock * ((w.k + kFp8WeightBlock - 1) / kFp8WeightBlock) + k / kFp8WeightBlock]);
    case WeightFormat::kMxfp4: {
      const uint8_t byte = w.data[(n * w.k + k) / 2];
      return decode_e2m1(k % 2 == 0 ? byte & 15u : byte >> 4) * decode_e8m0(w.scale[n * (w.k / kMxfp4Group) + k / kMxfp4Group]);
    }
  }
  return 0;
}

__device__ inline float sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))); }

// silu(min(gate, limit)) * clamp(up, -limit, limit). No step may be fused: kernels that must agree to the bit share it.
__device__ inline float swiglu_value(float gate, float up, float limit) {
  const float g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
  return __fmul_rn(__fmul_rn(g, sigmoid(g)), u);
}

}  // namespace dsv4::gpu
