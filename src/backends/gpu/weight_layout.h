// Strips: the packed layout that the sm90 kernels read. A weight keeps its bytes and gains no padding; only their order changes, once, at load.
//
// A strip is 16 rows (n) of the weight; a chunk is 128 columns (k) of a strip. Chunks of a strip follow each other, strips follow each other. Inside
// a chunk the bytes lie as the 32 lanes of a warp take them, 16 bytes per lane and load, in the operand order of a 16 x 16 tensor-core tile. Lane
// 4g + t owns rows g and g + 8; of every 16 columns (a step) it owns 4t .. 4t+3:
//
//   fp8_block  2048 bytes: [piece 0..3][lane][16]; byte 8 (s % 2) + 4 r + j of piece s / 2 is row g + 8r, column 16 s + 4t + j, steps s = 0..7
//   bf16       4096 bytes: [step 0..7][lane][16]; bf16 4 r + j is row g + 8r, column 16 s + 4t + j
//   mxfp4      1024 bytes: [piece 0..1][lane][16]; 32-bit word 2 (q % 2) + r of piece q / 2 holds row g + 8r, columns of the 32-group q = 0..3: the
//              pair P = 2 s + h (s: the group's step 0..1, h = 0..1) is columns 16 s + 4t + 2h, + 1; its even column sits in the word's low half, the
//              odd one in the high half. Pair P is (word ^ word moved by P's shift) & mask, two float16 values times 2^-14: a shift and one logical
//              operation each, where codes side by side take two and two for half of the pairs (strip_mxfp4_pair).
//   mxfp4 scales: 64 bytes per chunk: byte 8 g + 4 r + q is the scale of row g + 8r, group q. fp8_block scales stay the [n/128, k/128] grid.
#pragma once

#include <cstdint>

#include "tensor/host_device.h"
#include "tensor/weight.h"

namespace dsv4::gpu {

inline constexpr int kStripRows = 16;
inline constexpr int kChunkColumns = 128;
inline constexpr int kFp8ChunkBytes = kStripRows * kChunkColumns;
inline constexpr int kBf16ChunkBytes = 2 * kStripRows * kChunkColumns;
inline constexpr int kMxfp4ChunkBytes = kStripRows * kChunkColumns / 2;
inline constexpr int kMxfp4ChunkScaleBytes = kStripRows * kChunkColumns / static_cast<int>(kMxfp4Group);
static_assert(kMxfp4ChunkScaleBytes == 64);

// Whether a weight of this format and size can lie in strips. One that cannot stays row-major and takes the portable kernels.
inline bool fits_strips(WeightFormat format, int64_t n, int64_t k) { return format != WeightFormat::kF32 && n % kStripRows == 0 && k % kChunkColumns == 0; }

struct PairPlace {
  int64_t byte;  // of the pair's first byte (fp8, bf16) or of its 32-bit word (mxfp4)
  int pair;      // mxfp4: P of the word; else 0
};

// Where columns k and k + 1 (k even) of row n lie, in bytes from the start of the strips.
DSV4_HOST_DEVICE inline PairPlace strip_pair(WeightFormat format, int64_t n, int64_t k, int64_t columns) {
  const int64_t chunk = n / kStripRows * (columns / kChunkColumns) + k / kChunkColumns;
  const int row = static_cast<int>(n % kStripRows), g = row % 8, r = row / 8;
  const int c = static_cast<int>(k % kChunkColumns), s = c / 16, t = c % 16 / 4, j = c % 4, lane = 4 * g + t;
  if (format == WeightFormat::kFp8Block) return {chunk * kFp8ChunkBytes + s / 2 * 512 + lane * 16 + s % 2 * 8 + r * 4 + j, 0};
  if (format == WeightFormat::kBF16) return {chunk * kBf16ChunkBytes + s * 512 + lane * 16 + r * 8 + j * 2, 0};
  const int q = c / 32;
  return {chunk * kMxfp4ChunkBytes + q / 2 * 512 + lane * 16 + (q % 2 * 2 + r) * 4, s % 2 * 2 + j / 2};
}

// Pair `pair` of a word of eight E2M1 codes: in each half the sign at bit 15, the magnitude at bits 11 to 9, zeros elsewhere. The shifts (left 2, 6, 9;
// right 3) are the fewest and plainest for which all 32 bits of a word are seen and the map can be inverted.
DSV4_HOST_DEVICE constexpr uint32_t strip_mxfp4_pair(uint32_t word, int pair) {
  const uint32_t moved = pair == 0 ? word << 2 : pair == 1 ? word << 6 : pair == 2 ? word << 9 : word >> 3;
  return (word ^ moved) & 0x8e008e00u;
}

// Half a word whose pair `pair` has `code` in this half, the others zero. `above`: the whole word's bits above this half. Bit by bit from strip_mxfp4_pair,
// from the top down.
DSV4_HOST_DEVICE inline uint32_t strip_mxfp4_half(int pair, uint32_t code, uint32_t above) {
  uint32_t s[4] = {}, e1[4] = {}, e0[4] = {}, m[4] = {};
  s[pair] = code >> 3, e1[pair] = code >> 2 & 1u, e0[pair] = code >> 1 & 1u, m[pair] = code & 1u;
  const uint32_t b15 = s[3] ^ (above >> 2 & 1u), b13 = s[0] ^ b15, b9 = s[1] ^ b15, b6 = s[2] ^ b15;
  const uint32_t b10 = e0[3] ^ b13, b8 = e0[0] ^ b10, b4 = e0[1] ^ b10, b1 = e0[2] ^ b10;
  const uint32_t b12 = m[3] ^ b9, b7 = m[0] ^ b9, b3 = m[1] ^ b9, b0 = m[2] ^ b9;
  const uint32_t b11 = e1[0] ^ b9, b5 = e1[1] ^ b11, b2 = e1[2] ^ b11, b14 = e1[3] ^ b11;
  return b15 << 15 | b14 << 14 | b13 << 13 | b12 << 12 | b11 << 11 | b10 << 10 | b9 << 9 | b8 << 8 | b7 << 7 | b6 << 6 | b5 << 5 | b4 << 4 | b3 << 3 | b2 << 2 |
         b1 << 1 | b0;
}

// What a pair of E2M1 codes is in its word: the word of four pairs is the four combined by exclusive or.
DSV4_HOST_DEVICE inline uint32_t strip_mxfp4_bits(int pair, uint32_t even_code, uint32_t odd_code) {
  const uint32_t high = strip_mxfp4_half(pair, odd_code, 0);
  return high << 16 | strip_mxfp4_half(pair, even_code, high);
}

// Byte of the scale of row n, 32-group k / 32.
DSV4_HOST_DEVICE inline int64_t strip_mxfp4_scale(int64_t n, int64_t k, int64_t columns) {
  const int64_t chunk = n / kStripRows * (columns / kChunkColumns) + k / kChunkColumns;
  const int64_t row = n % kStripRows;
  return chunk * kMxfp4ChunkScaleBytes + row % 8 * 8 + row / 8 * 4 + k % kChunkColumns / kMxfp4Group;
}

// Host reference of the repacking: data and scales of `w` (row-major) into strips. Sizes as in `w`.
void pack_strips(const WeightView& w, uint8_t* data, uint8_t* scale);

}  // namespace dsv4::gpu
