// Where each layer's cache rows and compressor states lie. Pure arithmetic; memory belongs to whoever allocates the arenas.
//
// Three arenas of blocks of 64 rows. One block id names the same 64 rows in every layer of its kind, so a block holds one part per
// layer and the real block stride is the sum of the parts:
//   window        every layer: kv rows of the last tokens, a ring per slot
//   ratio 4       per ratio-4 layer: compressed rows, then indexer rows (64 rows = 256 tokens)
//   ratio 128     per ratio-128 layer: compressed rows (64 rows = 8192 tokens)
// and one arena of compressor states, [layer part][slot].
#pragma once

#include <cstdint>
#include <vector>

#include "cache/paged_rows.h"

namespace dsv4 {

struct KvLayoutInput {
  std::vector<int32_t> compress_ratios;  // per layer: 0, 4, 128
  int64_t head_dim = 512;
  int64_t index_head_dim = 128;
  RowFormat format = RowFormat::kFp8DsMla;  // kF32: indexer rows are float32 too; else they are kMxfp4
};

struct LayerCachePlace {
  int32_t ratio = 0;
  int64_t window_offset = 0;        // bytes from the start of a window block
  int64_t compressed_offset = 0;    // bytes from the start of a ratio-4 or ratio-128 block
  int64_t index_offset = 0;         // bytes from the start of a ratio-4 block
  int64_t state_floats_before = 0;  // floats per slot of all earlier parts: part base = this * num_slots
  int64_t index_state_floats_before = 0;
};

struct KvLayout {
  RowFormat format = RowFormat::kFp8DsMla;
  RowFormat index_format = RowFormat::kMxfp4;
  int64_t head_dim = 512;
  int64_t index_head_dim = 128;
  int64_t window_block_bytes = 0;
  int64_t ratio4_block_bytes = 0;  // 0 = no such layer
  int64_t ratio128_block_bytes = 0;
  int64_t state_floats_per_slot = 0;
  std::vector<LayerCachePlace> layers;
};

KvLayout plan_kv_layout(const KvLayoutInput& input);

// Rows and blocks a sequence of `tokens` tokens needs.
inline int64_t compressed_rows(int64_t tokens, int32_t ratio) { return tokens / ratio; }
inline int64_t blocks_for_rows(int64_t rows) { return (rows + kCacheBlockRows - 1) / kCacheBlockRows; }

}  // namespace dsv4
