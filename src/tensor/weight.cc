#include "tensor/weight.h"

#include <cstring>
#include <string>

#include "tensor/dtype.h"

namespace dsv4 {

int64_t WeightView::total_bytes() const {
  int64_t scales = 0;
  if (format == WeightFormat::kFp8Block) {
    scales = ((n + kFp8WeightBlock - 1) / kFp8WeightBlock) * ((k + kFp8WeightBlock - 1) / kFp8WeightBlock);
  } else if (format == WeightFormat::kMxfp4) {
    scales = n * (k / kMxfp4Group);
  }
  return n * row_bytes() + scales;
}

const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return "f32";
    case WeightFormat::kBF16: return "bf16";
    case WeightFormat::kFp8Block: return "fp8_block";
    case WeightFormat::kMxfp4: return "mxfp4";
  }
  return "?";
}

Status check_weight(const char* what, const WeightView& w) {
  DSV4_RETURN_IF_ERROR(check_weight_sizes(what, w));
  const std::string name = what;
  if (w.data == nullptr) return invalid_argument(name + ": weight has no data");
  const bool scaled = w.format == WeightFormat::kFp8Block || w.format == WeightFormat::kMxfp4;
  if (scaled && w.scale == nullptr) return invalid_argument(name + ": a " + weight_format_name(w.format) + " weight needs scales");
  return ok_status();
}

Status check_weight_sizes(const char* what, const WeightView& w) {
  const std::string name = what;
  if (w.n <= 0 || w.k <= 0) return invalid_argument(name + ": weight is [" + std::to_string(w.n) + ", " + std::to_string(w.k) + "], sizes must be positive");
  if (w.format == WeightFormat::kMxfp4 && w.k % kMxfp4Group != 0) {
    return invalid_argument(name + ": mxfp4 weight has k = " + std::to_string(w.k) + ", it must be a multiple of 32");
  }
  return ok_status();
}

void decode_weight_row(const WeightView& w, int64_t row, float* out) {
  const uint8_t* bytes = w.data + row * w.row_bytes();
  switch (w.format) {
    case WeightFormat::kF32: std::memcpy(out, bytes, static_cast<size_t>(4 * w.k)); return;
    case WeightFormat::kBF16:
      for (int64_t c = 0; c < w.k; ++c) {
        uint16_t b;
        std::memcpy(&b, bytes + 2 * c, 2);
        out[c] = bf16_to_float(b);
      }
      return;
    case WeightFormat::kFp8Block: {
      const uint8_t* scales = w.scale + (row / kFp8WeightBlock) * ((w.k + kFp8WeightBlock - 1) / kFp8WeightBlock);
      for (int64_t c = 0; c < w.k; ++c) out[c] = e4m3_to_float(bytes[c]) * e8m0_to_float(scales[c / kFp8WeightBlock]);
      return;
    }
    case WeightFormat::kMxfp4: {
      const uint8_t* scales = w.scale + row * (w.k / kMxfp4Group);
      for (int64_t c = 0; c < w.k; ++c) {
        const uint8_t nibble = c % 2 == 0 ? bytes[c / 2] & 15 : bytes[c / 2] >> 4;
        out[c] = e2m1_to_float(nibble) * e8m0_to_float(scales[c / kMxfp4Group]);
      }
      return;
    }
  }
}

}  // namespace dsv4
