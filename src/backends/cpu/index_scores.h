// The indexer's scores in integers. Rows of the index cache and, as a rule, the queries are E2M1 values under a power of two per 32, so twice their values
// are integers of at most 12 and a product of 32 of them is exact: 32 multiplications an instruction where floats take eight.
#pragma once

#include <cstdint>

#include "cache/paged_rows.h"
#include "tensor/rounding.h"

namespace dsv4 {

inline constexpr int64_t kIndexLanes = 8;         // keys scored together, a lane each
inline constexpr int64_t kIndexGroupVectors = 8;  // of 32 bytes: four values of each of eight keys

// Heads of one query, in integers. Within a group of 32 the order is that of IndexKeys.
struct IndexQuery {
  int8_t* values;    // [heads][groups][32]
  float* scales;     // [heads][groups]; a quarter of the value's: both factors are doubled
  int32_t* offsets;  // [heads][groups] 12 times the group's sum: the keys' values are 12 too large

  static int64_t bytes(int64_t heads, int64_t dim) { return heads * (dim + 8 * (dim / kIndexGroup)); }
  IndexQuery(uint8_t* memory, int64_t heads, int64_t dim) : values(reinterpret_cast<int8_t*>(memory)) {
    scales = reinterpret_cast<float*>(memory + heads * dim);
    offsets = reinterpret_cast<int32_t*>(scales + heads * (dim / kIndexGroup));
  }
};

// Eight rows of the cache: vector d holds, of each key in turn, four values of twice their size and 12 more. The four of vector 2 i are the values 0, 2, 4
// and 6 of the eight in word i of a row, those of vector 2 i + 1 the values 1, 3, 5 and 7.
struct IndexKeys {
  uint8_t* values = nullptr;  // [dim / 4][32]
  float* scales = nullptr;    // [groups][8]

  static int64_t bytes(int64_t dim) { return kIndexLanes * (dim + 4 * (dim / kIndexGroup)); }
  IndexKeys() = default;
  IndexKeys(uint8_t* memory, int64_t dim) : values(memory), scales(reinterpret_cast<float*>(memory + kIndexLanes * dim)) {}
};

// Whether rows can be read as IndexKeys.
inline bool integer_keys(const PagedRows& rows) { return rows.format == RowFormat::kMxfp4 && rows.row_dim % kIndexGroup == 0; }

// The query of `heads` heads of dim values in integers; false when a value is none under any power of two: scores in floats, then. It depends on
// the row alone, like all that decides a row's bits.
bool make_index_query(const float* q, int64_t heads, int64_t dim, const IndexQuery& out);

}  // namespace dsv4
