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
//              odd one in the high half; in a half, pair P has its magnitude (3 bits) at bit 9 - 3P and its sign at bit 15, 12, 14, 13. Masked, pair 0 IS
//              two float16 values times 2^-14; pair 1 is after one shift, pairs 2 and 3 after two.
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

// Bit of a half word where pair `pair` keeps its sign: what its shift left to bit 15 is.
DSV4_HOST_DEVICE constexpr int strip_mxfp4_sign_shift(int pair) { return pair == 0 ? 0 : pair == 1 ? 3 : pair == 2 ? 1 : 2; }

// Bits that a pair of E2M1 codes occupies in its word.
DSV4_HOST_DEVICE inline uint32_t strip_mxfp4_bits(int pair, uint32_t even_code, uint32_t odd_code) {
  const auto half = [pair](uint32_t code) { return (code & 7u) << (9 - 3 * pair) | (code >> 3) << (15 - strip_mxfp4_sign_shift(pair)); };
  return half(even_code) | half(odd_code) << 16;
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
