// Shared by the sm90 expert kernels.
#pragma once

#include "backends/gpu/runtime/kernel.h"
#include "backends/gpu/sm90/activation.h"
#include "ops/moe_experts.h"

namespace dsv4::gpu {

// The same for many rows (moe_wide.cu).
bool moe_wide_fits(const MoeExpertsArgs& args);
Status moe_experts_wide(GpuContext& gpu, const MoeExpertsArgs& args);
// y[t] += out[pair] of the token's choices, in order.
Status combine_pairs(GpuContext& gpu, const float* out, const MoeExpertsArgs& args);
// The forms the others do not take. One row: two launches, weights read once, straight from the experts' ids.
Status moe_experts_row(GpuContext& gpu, const MoeExpertsArgs& args);
// MXFP4 weights and rounded activations, 2 to 64 rows (moe_stream.cu).
bool moe_stream_fits(const MoeExpertsArgs& args);
Status moe_experts_stream(GpuContext& gpu, const MoeExpertsArgs& args);
// Several rows: rows are gathered by expert, so that each expert's weights are read once per tile of rows.
Status moe_experts_tile(GpuContext& gpu, const MoeExpertsArgs& args);

inline constexpr int kMaxTopk = 32;

inline Operand expert_operand(const MoeExpertsArgs& a) { return operand_of(a.table.format, a.rounding); }

}  // namespace dsv4::gpu
