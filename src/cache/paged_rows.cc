#include "cache/paged_rows.h"

#include <cstring>
#include <string>

#include "tensor/dtype.h"
#include "tensor/rounding.h"

namespace dsv4 {

const char* row_format_name(RowFormat format) {
  switch (format) {
    case RowFormat::kF32: return "f32";
    case RowFormat::kFp8DsMla: return "fp8_ds_mla";
    case RowFormat::kMxfp4: return "mxfp4";
  }
  return "?";
}

int64_t block_bytes(RowFormat format, int32_t block_rows, int64_t row_dim) {
  switch (format) {
    case RowFormat::kF32: return block_rows * row_dim * 4;
    case RowFormat::kFp8DsMla: return block_rows * (kMlaDataBytes + kMlaScaleBytes);
    case RowFormat::kMxfp4: return block_rows * (row_dim / 2 + row_dim / 32);
  }
  return 0;
}

Status check_paged_rows(const char* what, const PagedRows& rows) {
  const std::string name = what;
  if (rows.base == nullptr) return invalid_argument(name + ": cache has no memory");
  if (rows.block_rows <= 0 || rows.row_dim <= 0) return invalid_argument(name + ": cache blocks need rows and columns");
  if (rows.format == RowFormat::kFp8DsMla && rows.row_dim != kMlaRowDim) {
    return invalid_argument(name + ": fp8_ds_mla rows have 512 values, not " + std::to_string(rows.row_dim));
  }
  if (rows.format == RowFormat::kMxfp4 && rows.row_dim % 32 != 0) {
    return invalid_argument(name + ": mxfp4 rows need a multiple of 32 values, not " + std::to_string(rows.row_dim));
  }
  const int64_t least = block_bytes(rows.format, rows.block_rows, rows.row_dim);
  if (rows.block_stride_bytes < least) {
    return invalid_argument(name + ": block stride is " + std::to_string(rows.block_stride_bytes) + " bytes, a block of " + row_format_name(rows.format) +
                            " needs " + std::to_string(least));
  }
  return ok_status();
}

void write_row(const PagedRows& rows, int64_t block, int64_t offset, const float* values) {
  uint8_t* data = rows.base + row_data_offset(rows, block, offset);
  switch (rows.format) {
    case RowFormat::kF32: std::memcpy(data, values, sizeof(float) * static_cast<size_t>(rows.row_dim)); return;
    case RowFormat::kFp8DsMla: {
      uint8_t* scales = rows.base + row_scale_offset(rows, block, offset);
      for (int64_t g = 0; g < kMlaNopeDim / kMlaScaleGroup; ++g) {
        const float* x = values + g * kMlaScaleGroup;
        scales[g] = e4m3_scale_code(x, kMlaScaleGroup);
        const float s = e8m0_to_float(scales[g]);
        for (int64_t i = 0; i < kMlaScaleGroup; ++i) data[g * kMlaScaleGroup + i] = float_to_e4m3(x[i] / s);
      }
      scales[7] = 0;
      for (int64_t i = 0; i < kMlaRopeDim; ++i) {
        const uint16_t b = float_to_bf16(values[kMlaNopeDim + i]);
        std::memcpy(data + kMlaNopeDim + 2 * i, &b, 2);
      }
      return;
    }
    case RowFormat::kMxfp4: {
      uint8_t* scales = rows.base + row_scale_offset(rows, block, offset);
      for (int64_t g = 0; g < rows.row_dim / kIndexGroup; ++g) {
        const float* x = values + g * kIndexGroup;
        scales[g] = e2m1_scale_code(x, kIndexGroup);
        const float s = e8m0_to_float(scales[g]);
        for (int64_t i = 0; i < kIndexGroup; i += 2) {
          data[(g * kIndexGroup + i) / 2] = static_cast<uint8_t>(float_to_e2m1(x[i] / s) | float_to_e2m1(x[i + 1] / s) << 4);
        }
      }
      return;
    }
  }
}

void read_row(const PagedRows& rows, int64_t block, int64_t offset, float* values) {
  const uint8_t* data = rows.base + row_data_offset(rows, block, offset);
  switch (rows.format) {
    case RowFormat::kF32: std::memcpy(values, data, sizeof(float) * static_cast<size_t>(rows.row_dim)); return;
    case RowFormat::kFp8DsMla: {
      const uint8_t* scales = rows.base + row_scale_offset(rows, block, offset);
      for (int64_t i = 0; i < kMlaNopeDim; ++i) values[i] = e4m3_to_float(data[i]) * e8m0_to_float(scales[i / kMlaScaleGroup]);
      for (int64_t i = 0; i < kMlaRopeDim; ++i) {
        uint16_t b;
        std::memcpy(&b, data + kMlaNopeDim + 2 * i, 2);
        values[kMlaNopeDim + i] = bf16_to_float(b);
      }
      return;
    }
    case RowFormat::kMxfp4: {
      const uint8_t* scales = rows.base + row_scale_offset(rows, block, offset);
      for (int64_t i = 0; i < rows.row_dim; ++i) {
        const uint8_t nibble = i % 2 == 0 ? data[i / 2] & 15 : data[i / 2] >> 4;
        values[i] = e2m1_to_float(nibble) * e8m0_to_float(scales[i / kIndexGroup]);
      }
      return;
    }
  }
}

}  // namespace dsv4
