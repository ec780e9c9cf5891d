// Steps and caches of test cases: rows grouped by sequence, block tables in random order, paged memory that is poison but for the rows
// a sequence has.
#pragma once

#include <string>
#include <vector>

#include "cache/paged_rows.h"
#include "ops/testing/case_tools.h"

namespace dsv4::optest {

// `rows` new tokens of a sequence from position `first`, then `padding` rows with position -1. slot < 0: a sequence of padding alone.
struct SeqSpec {
  int32_t slot = 0;
  int32_t first = 0;
  int32_t rows = 1;
  int32_t padding = 0;
};

// The rows of a step. Slots of padding rows are absurd: nobody may use them.
struct StepRows {
  std::vector<SeqSpec> seqs;
  std::vector<int64_t> starts;  // first row of each sequence, then the number of rows
  std::vector<int32_t> positions;
  std::vector<int32_t> slots;
  int positions_t = 0, slots_t = 0, cu_rows_t = 0, seq_slots_t = 0;

  SequenceRows bind(const Bound& b) const;
  int32_t num_slots() const;  // one more than the largest slot
};

// Adds the tensors; sets num_rows and ordered (sequences are fed in order).
StepRows add_step(Problem& p, const std::vector<SeqSpec>& seqs);

struct CacheSpec {
  RowFormat format = RowFormat::kFp8DsMla;
  int32_t row_dim = 512;
  int64_t extra_stride = 0;  // bytes between blocks beyond the least
  int64_t base_offset = 0;   // bytes from the arena's start to this layer's part of block 0
  int32_t block_rows = kCacheBlockRows;
};

struct Cache {
  CacheSpec spec;
  PagedRows rows;  // base is null; bind() sets it
  int tensor = 0, table_tensor = 0;
  int64_t entries = 0;  // per slot
  std::vector<int32_t> ids;

  PagedRows bind(const Bound& b) const;
  BlockTable table(const Bound& b) const { return {b.pointer<int32_t>(table_tensor), entries}; }
  int64_t block(int32_t slot, int64_t row) const { return ids[static_cast<size_t>(slot * entries + row / spec.block_rows)]; }
  // The bytes of a row, as a result.
  Unit unit(int32_t slot, int64_t row) const;
  // Puts a row into the problem's image with the cache room's codec; call before anything runs.
  void write(Problem& p, int32_t slot, int64_t row, const float* values) const;
  // Decodes a row from the format's definition (model.md 11), not with the cache room's codec.
  std::vector<float> read(const Images& images, int32_t slot, int64_t row) const;
  // The pad byte of a packed row is zero.
  void judge_pad(const Images& images, int32_t slot, int64_t row, Verdict& verdict) const;
};

// Memory for `rows_per_slot[slot]` rows of each slot, in shuffled blocks, with `spare` table entries per slot that name no block.
Cache add_cache(Problem& p, const std::string& name, Role role, const CacheSpec& spec, const std::vector<int64_t>& rows_per_slot, int64_t spare = 1);

// The rounding a cache row of `format` passes: E4M3 over the values that are not rotated, or E2M1 (indexer rows).
RowRounding row_rounding(RowFormat format, CacheRounding rounding, int64_t row_dim, int64_t rope_dim, bool indexer);

// Judges the row of a cache against its truth, and counts elements that differ from the reference's.
void judge_cache_row(const Cache& cache, int32_t slot, int64_t row, const RowTruth& truth, const RowRounding& rounding, const Images& actual,
                     const Images* reference, Verdict& verdict);

}  // namespace dsv4::optest
