// Constants of the packed decodes, built at compile time.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace dsv4 {

// Position i of a packed group holds value kFp8Order[i] (kMxfp4Order[i]) of its 32: the order the cheap decodes yield.
inline constexpr uint8_t kFp8Order[32] = {0, 4, 8, 12, 16, 20, 24, 28, 2, 6, 10, 14, 18, 22, 26, 30, 1, 5, 9, 13, 17, 21, 25, 29, 3, 7, 11, 15, 19, 23, 27, 31};
inline constexpr uint8_t kMxfp4Order[32] = {0,  4,  8,  12, 1,  5,  9,  13, 2,  6,  10, 14, 3,  7,  11, 15,
                                            16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27, 31};

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

// 2^(code - 127 + 120), which turns the bits of an FP8 code, shifted into a float, into its scaled value (decode-inl.h). Codes above
// kLargestFoldedScale (2^7) do not fit and are decoded plainly; 255 is NaN.
inline constexpr uint8_t kLargestFoldedScale = 134;
inline constexpr std::array<float, 256> kFp8FoldedScale = [] {
  std::array<float, 256> t{};
  for (unsigned c = 0; c < 256; ++c) t[c] = std::bit_cast<float>((c <= kLargestFoldedScale ? c + 120u : 254u) << 23);
  return t;
}();

}  // namespace dsv4
