// Element types as stored, and their scalar codecs. Sources: OCP 8-bit Floating Point (E4M3 "fn"), OCP Microscaling
// (E2M1, E8M0), bfloat16 = the upper half of a binary32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

namespace dsv4 {

enum class DType : uint8_t { kF32, kBF16, kF8E4M3, kF8E8M0, kI8, kI32, kI64 };

// Bytes of one stored element (kI8 holds two E2M1 values in expert weights; this is still 1).
constexpr int64_t dtype_size_bytes(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16: return 2;
    case DType::kI64: return 8;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8: return 1;
  }
  return 0;
}

// The safetensors spelling: "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", "I32", "I64".
std::string_view dtype_name(DType t);

inline float bf16_to_float(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

// Round to nearest even; NaN stays NaN (quiet).
inline uint16_t float_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// E4M3 fn: sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7f and 0xff are NaN, there are no infinities, max 448.
inline float e4m3_to_float(uint8_t c) {
  const uint32_t sign = static_cast<uint32_t>(c & 0x80u) << 24;
  const uint32_t magnitude = c & 0x7fu;
  if (magnitude == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude < 8u) {  // subnormal: m * 2^-9, exact
    const float v = static_cast<float>(magnitude) * 0.001953125f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

// Nearest E4M3, ties to even, saturating at 448; NaN gives 0x7f.
inline uint8_t float_to_e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return 0x7f;
  if (a >= 0x43e00000u) return sign | 0x7e;  // >= 448
  if (a < 0x3c800000u) {                     // < 2^-6: multiples of 2^-9; nearbyint rounds ties to even; 8 is the first normal
    const int m = static_cast<int>(std::nearbyint(std::bit_cast<float>(a) * 512.0f));
    return static_cast<uint8_t>(sign | m);
  }
  const uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);  // keep 3 mantissa bits
  const uint32_t code = (rounded >> 20) - ((127u - 7u) << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

// E8M0: 2^(c - 127); 0 = 2^-127 (a subnormal float), 255 = NaN.
inline float e8m0_to_float(uint8_t c) {
  if (c == 255) return std::numeric_limits<float>::quiet_NaN();
  if (c == 0) return std::bit_cast<float>(0x00400000u);
  return std::bit_cast<float>(static_cast<uint32_t>(c) << 23);
}

inline constexpr float kE2M1Values[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline float e2m1_to_float(uint8_t nibble) { return kE2M1Values[nibble & 15]; }

// Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 by magnitude; a tie goes DOWN (toward zero), as the checkpoint's reference does.
inline uint8_t float_to_e2m1(float x) {
  constexpr float kMidpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float a = std::fabs(x);
  uint8_t code = 0;
  while (code < 7 && a > kMidpoints[code]) ++code;
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

// The E8M0 code of the smallest power of two >= x (x positive and normal): the scale rule of activations and caches.
inline uint8_t e8m0_ceil(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return static_cast<uint8_t>((u >> 23) + ((u & 0x7fffffu) != 0 ? 1u : 0u));
}

}  // namespace dsv4
