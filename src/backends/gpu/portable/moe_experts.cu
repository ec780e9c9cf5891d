// moe_experts for any weights on any card. First launch: a lane group makes one value of one (token, choice): both dots, activation, routing
// weight. Then rounding. Last: a lane group adds one output value over the token's choices, in order. No sharing of weights between tokens.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/linear.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / kGroupLanes;

__device__ float group_dot(const PackedRows& w, int64_t n, const float* x) {
  float sum = 0;
  for (int64_t k = group_lane(); k < w.k; k += kGroupLanes) sum += weight_value(w, n, k) * x[k];
  return group_sum(sum);
}

__device__ PackedRows expert(WeightFormat format, bool strips, const uint8_t* const* data, const uint8_t* const* scale, int32_t e, int64_t k) {
  return {format, strips, data[e], scale == nullptr ? nullptr : scale[e], k};
}

__global__ void expert_up(ExpertTable table, bool strips, Rows<const float> x, Rows<const int32_t> experts, Rows<const float> weights, int64_t topk,
                          float limit, float* act) {
  wait_previous();
  allow_next();
  const int64_t f = static_cast<int64_t>(blockIdx.x) * kGroups + group_index(), t = blockIdx.y / topk, k = blockIdx.y % topk;
  if (f >= table.ffn_dim) return;
  const int32_t e = experts.row(t)[k];
  float value = 0;
  if (e >= 0) {
    const float gate = group_dot(expert(table.format, strips, table.w1, table.w1_scale, e, table.hidden_dim), f, x.row(t));
    const float up = group_dot(expert(table.format, strips, table.w3, table.w3_scale, e, table.hidden_dim), f, x.row(t));
    value = swiglu_value(gate, up, limit) * weights.row(t)[k];
  }
  if (group_lane() == 0) act[static_cast<int64_t>(blockIdx.y) * table.ffn_dim + f] = value;
}

__global__ void expert_down(ExpertTable table, bool strips, const float* act, Rows<const int32_t> experts, int64_t topk, Rows<float> y) {
  wait_previous();
  allow_next();
  const int64_t d = static_cast<int64_t>(blockIdx.x) * kGroups + group_index(), t = blockIdx.y;
  if (d >= table.hidden_dim) return;
  float sum = y.row(t)[d];
  for (int64_t k = 0; k < topk; ++k) {
    const int32_t e = experts.row(t)[k];
    if (e >= 0) sum += group_dot(expert(table.format, strips, table.w2, table.w2_scale, e, table.ffn_dim), d, act + (t * topk + k) * table.ffn_dim);
  }
  if (group_lane() == 0) y.row(t)[d] = sum;
}

}  // namespace

Status moe_experts_portable(OpContext& context, const MoeExpertsArgs& a) {
  if (a.x.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const bool rounded = a.rounding != ActivationRounding::kNone && takes_rounding(a.table.format);
  const int64_t pairs = a.experts.rows * a.experts.cols;
  const auto cut = [&](ScratchPlan plan, float** x, float** act, float** act_rounded) {
    *x = plan.take<float>(rounded ? a.x.rows * a.x.cols : 0);
    *act = plan.take<float>(pairs * a.table.ffn_dim);
    *act_rounded = plan.take<float>(rounded ? pairs * a.table.ffn_dim : 0);
    return plan.used_bytes();
  };
  float *x_rounded, *act, *act_rounded;
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(cut(ScratchPlan(), &x_rounded, &act, &act_rounded)));
  cut(ScratchPlan(scratch), &x_rounded, &act, &act_rounded);

  Rows<const float> x = rows_of(a.x);
  if (rounded) {
    DSV4_RETURN_IF_ERROR(round_activations(gpu, a.rounding, x, a.x.rows, a.x.cols, x_rounded));
    x = {x_rounded, a.x.cols};
  }
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts", expert_up, {.blocks_x = ceil_div(a.table.ffn_dim, kGroups), .blocks_y = pairs, .threads = kThreads}, a.table,
                              gpu.strips && fits_strips(a.table.format, a.table.ffn_dim, a.table.hidden_dim), x, rows_of(a.experts), rows_of(a.weights),
                              a.experts.cols, a.limit, act));
  if (rounded) {
    DSV4_RETURN_IF_ERROR(round_activations(gpu, a.rounding, {act, a.table.ffn_dim}, pairs, a.table.ffn_dim, act_rounded));
    act = act_rounded;
  }
  return launch(gpu, "moe_experts", expert_down, {.blocks_x = ceil_div(a.table.hidden_dim, kGroups), .blocks_y = a.x.rows, .threads = kThreads}, a.table,
                gpu.strips && fits_strips(a.table.format, a.table.hidden_dim, a.table.ffn_dim), static_cast<const float*>(act), rows_of(a.experts),
                a.experts.cols, rows_of(a.y));
}

}  // namespace dsv4::gpu
