// The step's key/value rows: RMSNorm(kv, norm), rotate the last rope_dim, round (CacheRounding), write to the window cache at ring row
// position mod ring_rows of the row's slot. Source: model.md 5, 9, 11.
#pragma once

#include "cache/paged_rows.h"
#include "ops/op.h"

namespace dsv4 {

struct KvInsertArgs {
  Matrix<const float> kv;          // [T, head_dim]
  const uint16_t* norm = nullptr;  // [head_dim] BF16
  float eps = 1e-6f;
  Matrix<const float> cos_sin;  // [T, rope_dim]
  SequenceRows rows;
  CacheRounding rounding = CacheRounding::kE4M3;  // kNone only with an F32 cache
  PagedRows window;
  BlockTable window_table;
  int32_t ring_rows = 0;  // at least window + the step's rows of one sequence - 1
};

Status check(const KvInsertArgs& args);
OpCost cost(const KvInsertArgs& args);
Status kv_insert_reference(OpContext& context, const KvInsertArgs& args);

}  // namespace dsv4
