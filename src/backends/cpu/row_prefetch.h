// Going along packed cache rows, and asking for them before they are decoded: at long contexts they come from beyond L2, in pieces too short and too
// scattered for the hardware's streams.
#pragma once

#include <cstdint>

#include "cache/paged_rows.h"

namespace dsv4 {

// Rows of a sequence in order: a block and a place in it are carried along, as a division costs a good part of a key's decode.
struct RowWalk {
  int64_t block_rows, block, place;

  RowWalk(int64_t rows_of_block, int64_t row) : block_rows(rows_of_block), block(row / rows_of_block), place(row % rows_of_block) {}
  void next() {
    if (++place == block_rows) {
      place = 0;
      ++block;
    }
  }
};

// Row `offset` of a block. It may lie beyond the block's end: addresses are only asked for, never read.
inline void ask_for_row(const PagedRows& rows, int64_t block, int64_t offset) {
  const int64_t begin = row_data_offset(rows, block, offset), end = row_data_offset(rows, block, offset + 1);
  for (int64_t at = begin; at < end; at += 64) __builtin_prefetch(rows.base + at);
  if (rows.format != RowFormat::kF32) __builtin_prefetch(rows.base + row_scale_offset(rows, block, offset));
}

}  // namespace dsv4
