// Rows of a cache in fixed-size blocks, and the formats a row can have. A view: the bytes may be device memory.
//
//   kF32       block = block_rows x row_dim floats. The oracle's cache.
//   kFp8DsMla  block = block_rows x 576 bytes of data (448 E4M3 values, then 64 BF16), THEN block_rows x 8 bytes of scales (7 E8M0,
//              one per 64 no-rope values, and one zero pad byte). It is not 584 contiguous bytes per row. row_dim is 512.
//   kMxfp4     block = block_rows x row_dim/2 bytes of E2M1 pairs (low nibble = even index), THEN block_rows x row_dim/32 E8M0
//              bytes. The indexer's rows.
//
// Blocks lie block_stride_bytes apart, which may be more than one block needs: one arena block holds the rows of every layer.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace dsv4 {

enum class RowFormat : uint8_t { kF32, kFp8DsMla, kMxfp4 };

inline constexpr int32_t kCacheBlockRows = 64;

// fp8_ds_mla: 512 = 448 values without rotation (E4M3) + 64 rotated (BF16).
inline constexpr int64_t kMlaRowDim = 512;
inline constexpr int64_t kMlaNopeDim = 448;
inline constexpr int64_t kMlaRopeDim = 64;
inline constexpr int64_t kMlaScaleGroup = 64;
inline constexpr int64_t kMlaDataBytes = kMlaNopeDim + 2 * kMlaRopeDim;  // 576
inline constexpr int64_t kMlaScaleBytes = 8;                             // 7 scales + 1 pad
static_assert(kMlaDataBytes == 576 && kMlaNopeDim / kMlaScaleGroup == 7);

struct PagedRows {
  RowFormat format = RowFormat::kF32;
  uint8_t* base = nullptr;         // block 0 of this layer
  int64_t block_stride_bytes = 0;  // from one block to the next
  int32_t block_rows = kCacheBlockRows;
  int32_t row_dim = 0;
};

// Row r of slot s lies in block ids[s * stride + r / block_rows], at r % block_rows.
struct BlockTable {
  const int32_t* ids = nullptr;
  int64_t stride = 0;  // entries per slot
};

const char* row_format_name(RowFormat format);

// Bytes one block of one layer needs (the least block_stride_bytes).
int64_t block_bytes(RowFormat format, int32_t block_rows, int64_t row_dim);

Status check_paged_rows(const char* what, const PagedRows& rows);

// Where row `offset` of block `block` lies, in bytes from base: its data and its scales (scale unused for kF32).
inline int64_t row_data_offset(const PagedRows& r, int64_t block, int64_t offset) {
  const int64_t row_bytes = r.format == RowFormat::kF32 ? 4 * int64_t{r.row_dim} : r.format == RowFormat::kFp8DsMla ? kMlaDataBytes : r.row_dim / 2;
  return block * r.block_stride_bytes + offset * row_bytes;
}
inline int64_t row_scale_offset(const PagedRows& r, int64_t block, int64_t offset) {
  return r.format == RowFormat::kFp8DsMla ? block * r.block_stride_bytes + r.block_rows * kMlaDataBytes + offset * kMlaScaleBytes
                                          : block * r.block_stride_bytes + int64_t{r.block_rows} * (r.row_dim / 2) + offset * (r.row_dim / 32);
}

// Host reference codecs of one row of row_dim floats. Writing rounds to the format (E4M3 and E2M1 with the scale rules of
// tensor/rounding.h, BF16 to nearest even); reading is exact.
void write_row(const PagedRows& rows, int64_t block, int64_t offset, const float* values);
void read_row(const PagedRows& rows, int64_t block, int64_t offset, float* values);

}  // namespace dsv4
