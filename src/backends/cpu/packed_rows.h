// Where packed activations lie (pack-inl.h).
#pragma once

#include <cstdint>

#include "ops/op.h"
#include "tensor/weight.h"

namespace dsv4 {

// Values of K per block: 8 groups of 32. A decoded tile of 24 outputs x 256 values is 24 KiB, and leaves room for four rows in a 32 KiB L1.
inline constexpr int64_t kBlockK = 256;

// Order of the 32 values of a group (decode_tables.h).
enum class PackOrder : uint8_t { kNatural, kFp8, kMxfp4 };

inline PackOrder pack_order(WeightFormat f) {
  return f == WeightFormat::kMxfp4 ? PackOrder::kMxfp4 : f == WeightFormat::kFp8Block ? PackOrder::kFp8 : PackOrder::kNatural;
}

struct PackedRows {
  float* data = nullptr;
  int64_t row_stride = 0;    // floats from one row to the next inside a block
  int64_t block_stride = 0;  // floats from one block to the next

  float* block(int64_t row, int64_t b) const { return data + b * block_stride + row * row_stride; }
  float* group(int64_t row, int64_t g) const { return block(row, g / (kBlockK / 32)) + g % (kBlockK / 32) * 32; }

  static int64_t floats(int64_t rows, int64_t k) { return (k + kBlockK - 1) / kBlockK * kBlockK * rows; }
  static PackedRows blocked(float* data, int64_t rows) { return {data, kBlockK, kBlockK * rows}; }
  // Rows used where they lie: k must be a multiple of 32 and the order natural. Only read.
  static PackedRows in_place(const float* data, int64_t row_stride) { return {const_cast<float*>(data), row_stride, kBlockK}; }
};

}  // namespace dsv4
