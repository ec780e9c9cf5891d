// Reads cache rows of one sequence to the host, for checks: whole blocks at a time, decoded by the cache room's own codec.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "model/kv_cache.h"

namespace dsv4 {

struct CacheRow {
  RowFormat format = RowFormat::kF32;
  std::vector<uint8_t> data;    // as stored
  std::vector<uint8_t> scales;  // as stored; fp8_ds_mla: 7 scales and the pad byte; empty for f32
  std::vector<float> values;    // decoded
};

enum class CacheRowKind : uint8_t { kWindow, kCompressed, kIndex };
const char* cache_row_kind_name(CacheRowKind kind);  // "window", "compressed", "index"

// A snapshot: blocks are fetched once, so make a new reader after the cache has changed.
class CacheReader {
 public:
  CacheReader(const KvCache& cache, Device& device, int32_t slot) : cache_(cache), device_(device), slot_(slot) {}

  // `row`: position for kWindow, compressed row for the others. The row must exist (window: one of the last ring_rows positions).
  // The reference stays valid until the next call.
  Result<const CacheRow*> read(CacheRowKind kind, int64_t layer, int64_t row);

 private:
  Result<std::span<const int32_t>> table_of(CacheRowKind kind, int32_t ratio);

  const KvCache& cache_;
  Device& device_;
  int32_t slot_;
  std::map<int32_t, std::vector<int32_t>> tables_;                                     // ratio (0 = window) -> block ids of the slot
  std::map<std::tuple<CacheRowKind, int64_t, int64_t>, std::vector<uint8_t>> blocks_;  // (kind, layer, block) -> bytes
  CacheRow row_;
};

// "" or what is wrong with the stored scales of a row: a NaN code, a scale no rounding can give, a pad byte that is not zero (then
// the bytes are not laid out as fp8_ds_mla).
std::string scale_fault(const CacheRow& row);
// "" or the first decoded value that is not finite or beyond `limit`.
std::string value_fault(const CacheRow& row, float limit);

}  // namespace dsv4
