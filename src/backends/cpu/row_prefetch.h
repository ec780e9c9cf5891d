// Asking for packed cache rows before they are decoded: at long contexts they come from beyond L2, in pieces too short and too scattered for
// the hardware's streams.
#pragma once

#include <cstdint>

#include "cache/paged_rows.h"

namespace dsv4 {

// Row `offset` of a block. It may lie beyond the block's end: addresses are only asked for, never read.
inline void ask_for_row(const PagedRows& rows, int64_t block, int64_t offset) {
  const int64_t begin = row_data_offset(rows, block, offset), end = row_data_offset(rows, block, offset + 1);
  for (int64_t at = begin; at < end; at += 64) __builtin_prefetch(rows.base + at);
  if (rows.format != RowFormat::kF32) __builtin_prefetch(rows.base + row_scale_offset(rows, block, offset));
}

}  // namespace dsv4
