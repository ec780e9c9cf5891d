// Shared by the sm90 expert kernels.
#pragma once

#include "backends/gpu/runtime/kernel.h"
#include "backends/gpu/sm90/activation.h"
#include "ops/moe_experts.h"

namespace dsv4::gpu {

// One row: two launches, weights read once, straight from the experts' ids.
Status moe_experts_row(GpuContext& gpu, const MoeExpertsArgs& args);
// Several rows: rows are gathered by expert, so that each expert's weights are read once per tile of rows.
Status moe_experts_tile(GpuContext& gpu, const MoeExpertsArgs& args);

inline constexpr int kMaxTopk = 32;

inline Operand expert_operand(const MoeExpertsArgs& a) { return operand_of(a.table.format, a.rounding); }

}  // namespace dsv4::gpu
