// Chosen experts, sorted: (token, choice) pairs by expert, keeping their order, cut into units of at most `unit_rows` pairs of one expert.
#pragma once

#include "backends/gpu/runtime/kernel.h"
#include "ops/moe_experts.h"

namespace dsv4::gpu {

struct Units {
  int32_t* count;   // [1]
  int32_t* expert;  // [max_units]
  int32_t* first;   // [max_units] into pairs
  int32_t* rows;    // [max_units]
  int32_t* pairs;   // [most_places] token * topk + choice
  int align = 1;    // an expert's pairs start at a multiple of this; nobody writes the places between
};

inline int64_t most_places(int64_t pairs, int64_t experts, int64_t align) { return pairs + (align - 1) * (pairs < experts ? pairs : experts); }
// Each expert has at most one unit that is not full.
inline int64_t max_units(int64_t pairs, int64_t experts, int64_t unit_rows) { return pairs < experts ? pairs : experts + pairs / unit_rows; }

Status sort_pairs(GpuContext& gpu, Rows<const int32_t> experts, int64_t tokens, int64_t topk, int64_t num_experts, int unit_rows, const Units& out);

}  // namespace dsv4::gpu
