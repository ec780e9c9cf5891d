#include "verify/cache_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "tensor/dtype.h"

namespace dsv4 {
namespace {

// The rounding rules' least scale codes: 2^ceil(log2(1e-4 / 448)) = 2^-22 and 2^-126 (tensor/rounding.h).
constexpr int kLeastE4M3Scale = 127 - 22;
constexpr int kLeastE2M1Scale = 1;
// A normed row has at most 512^0.5 = 22.6 times its largest norm weight; 2^15 is far beyond any.
constexpr int kMostScale = 127 + 15;

int64_t data_bytes(const PagedRows& rows) {
  return rows.format == RowFormat::kF32 ? 4 * int64_t{rows.row_dim} : rows.format == RowFormat::kFp8DsMla ? kMlaDataBytes : rows.row_dim / 2;
}
int64_t scale_bytes(const PagedRows& rows) {
  return rows.format == RowFormat::kF32 ? 0 : rows.format == RowFormat::kFp8DsMla ? kMlaScaleBytes : rows.row_dim / kMlaScaleGroup * 2;
}
static_assert(kMlaScaleGroup == 64, "an MXFP4 row has one scale per 32 values");

}  // namespace

const char* cache_row_kind_name(CacheRowKind kind) {
  switch (kind) {
    case CacheRowKind::kWindow: return "window";
    case CacheRowKind::kCompressed: return "compressed";
    case CacheRowKind::kIndex: return "index";
  }
  return "?";
}

Result<std::span<const int32_t>> CacheReader::table_of(CacheRowKind kind, int32_t ratio) {
  std::vector<int32_t>& ids = tables_[kind == CacheRowKind::kWindow ? 0 : ratio];
  if (ids.empty()) {
    const BlockTable table = kind == CacheRowKind::kWindow ? cache_.window_table() : cache_.compressed_table(ratio);
    ids.resize(static_cast<size_t>(table.stride));
    DSV4_RETURN_IF_ERROR(device_.download(ids.data(), table.ids + slot_ * table.stride, 4 * table.stride));
  }
  return std::span<const int32_t>(ids);
}

Result<const CacheRow*> CacheReader::read(CacheRowKind kind, int64_t layer, int64_t row) {
  const int32_t ratio = cache_.layout().layers[static_cast<size_t>(layer)].ratio;
  PagedRows rows = kind == CacheRowKind::kWindow       ? cache_.window(layer)
                   : kind == CacheRowKind::kCompressed ? cache_.compressed(layer)
                                                       : cache_.index_rows(layer);
  if (kind == CacheRowKind::kWindow) row %= cache_.ring_rows();
  DSV4_ASSIGN_OR_RETURN(const std::span<const int32_t> table, table_of(kind, ratio));
  const int64_t index = row / rows.block_rows, offset = row % rows.block_rows;
  if (rows.base == nullptr || index >= static_cast<int64_t>(table.size())) {
    return invalid_argument(fmt::format("cache: layer {} has no {} row {}", layer, cache_row_kind_name(kind), row));
  }
  std::vector<uint8_t>& block = blocks_[{kind, layer, index}];
  if (block.empty()) {
    block.resize(static_cast<size_t>(block_bytes(rows.format, rows.block_rows, rows.row_dim)));
    const uint8_t* source = rows.base + int64_t{table[static_cast<size_t>(index)]} * rows.block_stride_bytes;
    DSV4_RETURN_IF_ERROR(device_.download(block.data(), source, static_cast<int64_t>(block.size())));
  }
  rows.base = block.data();  // block 0 of a cache of one block
  row_.format = rows.format;
  const uint8_t* data = block.data() + row_data_offset(rows, 0, offset);
  row_.data.assign(data, data + data_bytes(rows));
  row_.scales.clear();
  if (scale_bytes(rows) > 0) {
    const uint8_t* scales = block.data() + row_scale_offset(rows, 0, offset);
    row_.scales.assign(scales, scales + scale_bytes(rows));
  }
  row_.values.resize(static_cast<size_t>(rows.row_dim));
  read_row(rows, 0, offset, row_.values.data());
  return const_cast<const CacheRow*>(&row_);
}

std::string scale_fault(const CacheRow& row) {
  const bool mla = row.format == RowFormat::kFp8DsMla;
  const size_t count = mla ? 7 : row.scales.size();
  const int least = mla ? kLeastE4M3Scale : kLeastE2M1Scale;
  for (size_t i = 0; i < count; ++i) {
    const int code = row.scales[i];
    if (code == 255) return fmt::format("scale byte {} is 255, a NaN", i);
    if (code < least || code > kMostScale)
      return fmt::format("scale byte {} is {}, no rounding gives less than {} or more than {}", i, code, least, kMostScale);
  }
  if (mla && row.scales[7] != 0)
    return fmt::format("the pad byte after the scales is {}, it must be 0: the bytes are not laid out as fp8_ds_mla", row.scales[7]);
  return "";
}

std::string value_fault(const CacheRow& row, float limit) {
  for (size_t i = 0; i < row.values.size(); ++i) {
    const float v = row.values[i];
    if (!(std::fabs(v) <= limit)) return fmt::format("channel {} is {:g}", i, v);
  }
  return "";
}

}  // namespace dsv4
