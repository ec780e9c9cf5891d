// A weight matrix [n, k] as the checkpoint stores it; it stays packed. Value of element (row, col):
//   kF32, kBF16    data[row][col]
//   kFp8Block      e4m3(data[row][col]) * e8m0(scale[row / 128][col / 128])          scale: [ceil(n/128), ceil(k/128)]
//   kMxfp4         e2m1(nibble col of data[row]; low nibble = even col) * e8m0(scale[row][col / 32])   data: [n, k/2] bytes
// Source: the checkpoint's quantization_config and the OCP microscaling format.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace dsv4 {

enum class WeightFormat : uint8_t { kF32, kBF16, kFp8Block, kMxfp4 };

inline constexpr int64_t kFp8WeightBlock = 128;  // rows and columns that share one E8M0 scale
inline constexpr int64_t kMxfp4Group = 32;       // columns that share one E8M0 scale

struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  const uint8_t* data = nullptr;   // row-major, rows contiguous
  const uint8_t* scale = nullptr;  // null for kF32, kBF16
  int64_t n = 0;
  int64_t k = 0;

  int64_t row_bytes() const {
    switch (format) {
      case WeightFormat::kF32: return 4 * k;
      case WeightFormat::kBF16: return 2 * k;
      case WeightFormat::kFp8Block: return k;
      case WeightFormat::kMxfp4: return k / 2;
    }
    return 0;
  }
  // Bytes of data and scales: what one product with it must read.
  int64_t total_bytes() const;
};

const char* weight_format_name(WeightFormat format);

// Pointers are set and the sizes suit the format (k even for MXFP4 and a multiple of 32). `what` starts the message.
Status check_weight(const char* what, const WeightView& w);
// The same without the pointers: for weights whose bytes are still to come.
Status check_weight_sizes(const char* what, const WeightView& w);

// Reference decode of one whole row into out[k], float32, exact.
void decode_weight_row(const WeightView& w, int64_t row, float* out);

}  // namespace dsv4
