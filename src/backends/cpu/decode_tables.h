// Constants of the packed decodes, built at compile time.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace dsv4 {

// Position i of a packed MXFP4 group holds value kMxfp4Order[i] of K: vector 0 the even values of 0..7 and 16..23, vector 1 their odd
// ones, vectors 2 and 3 the same of 8..15 and 24..31.
inline constexpr uint8_t kMxfp4Order[32] = {0, 2, 4,  6,  16, 18, 20, 22, 1, 3, 5,  7,  17, 19, 21, 23,
                                            8, 10, 12, 14, 24, 26, 28, 30, 9, 11, 13, 15, 25, 27, 29, 31};

// For each E8M0 scale code the 16 scaled E2M1 values as bfloat16: 16 low bytes, then 16 high bytes. 8 KiB.
struct Mxfp4Bf16Tables {
  alignas(64) uint8_t bytes[256][32];
};
inline constexpr Mxfp4Bf16Tables kMxfp4Bf16Tables = [] {
  Mxfp4Bf16Tables t{};
  // Magnitudes m * 2^e: exponent and "times 1.5" bit per code.
  constexpr int kExponent[8] = {0, -1, 0, 0, 1, 1, 2, 2};
  constexpr int kHalf[8] = {0, 0, 0, 1, 0, 1, 0, 1};
  for (int s = 0; s < 256; ++s) {
    for (int c = 0; c < 16; ++c) {
      unsigned bits = 0;
      if (s == 255) {
        bits = 0x7fc0;
      } else if ((c & 7) != 0) {
        const int exponent = kExponent[c & 7] + s;  // biased by 127
        const unsigned half = static_cast<unsigned>(kHalf[c & 7]);
        if (exponent >= 255) {
          bits = 0x7f80;
        } else if (exponent >= 1) {
          bits = static_cast<unsigned>(exponent) << 7 | half << 6;
        } else {
          bits = (0x80u | half << 6) >> (1 - exponent);  // subnormal: exponents 0 and -1 shift by 1 and 2, nothing falls out
        }
      }
      bits |= (c & 8) != 0 ? 0x8000u : 0u;
      t.bytes[s][c] = static_cast<uint8_t>(bits & 0xff);
      t.bytes[s][16 + c] = static_cast<uint8_t>(bits >> 8);
    }
  }
  return t;
}();

// 2^(code - 127 + 8); codes above kLargestFoldedScale do not fit (255 is NaN) and are decoded plainly.
inline constexpr uint8_t kLargestFoldedScale = 246;
inline constexpr std::array<float, 256> kFp8ScaleTimes256 = [] {
  std::array<float, 256> t{};
  for (unsigned c = 0; c < 256; ++c) t[c] = std::bit_cast<float>((c <= kLargestFoldedScale ? c + 8u : 254u) << 23);
  return t;
}();

}  // namespace dsv4
