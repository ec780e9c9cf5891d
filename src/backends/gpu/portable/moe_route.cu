// moe_route: one block per token makes the scores, in shared memory; one lane group chooses. What is compared lies in registers (up to kRegisterExperts
// experts; more are re-read each round). top_k rounds: each lane's best, the group's largest in an order-keeping integer form, the lowest expert that has it.
// Latency-bound.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/runtime/kernel.h"

namespace dsv4::gpu {
namespace {

constexpr int kPerLane = 8;
constexpr int kRegisterExperts = kPerLane * kGroupLanes;

// An unsigned form that orders as the float does, -0 as 0; never 0.
__device__ uint32_t ordered(float x) {
  const uint32_t u = __float_as_uint(x == 0.0f ? 0.0f : x);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// sqrt(softplus(x)). Far below zero softplus is exp(x) to the last bit, and its root is exp(x / 2), which does not underflow.
__device__ float route_score(float x) { return x < -20.0f ? expf(0.5f * x) : sqrtf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)))); }

struct RouteArgs {
  Rows<const float> logits;
  int experts_total;
  const float* bias;
  const int64_t* tid2eid;
  const int32_t* token_ids;
  int topk;
  float scaling;
  Rows<int32_t> experts;
  Rows<float> weights;
};

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) route_rows(RouteArgs a) {
  extern __shared__ float s[];  // scores [E], the compared forms [E] (a taken one is 0), the chosen [topk]
  uint32_t* forms = reinterpret_cast<uint32_t*>(s + a.experts_total);
  uint32_t* chosen = forms + a.experts_total;
  const bool in_registers = a.experts_total <= kRegisterExperts;
  const int lane = group_lane(), tid = static_cast<int>(threadIdx.x);
  const float first_bias = a.bias != nullptr && tid < a.experts_total ? a.bias[tid] : 0.0f;
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.x;
  const int32_t id = a.token_ids[t];
  int32_t* out = a.experts.row(t);
  float* weights = a.weights.row(t);
  if (id < 0) {
    for (int k = tid; k < a.topk; k += kThreads) {
      out[k] = -1;
      weights[k] = 0;
    }
    return;
  }
  for (int e = tid; e < a.experts_total; e += kThreads) {
    s[e] = route_score(a.logits.row(t)[e]);
    forms[e] = ordered(s[e] + (e < kThreads ? first_bias : a.bias != nullptr ? a.bias[e] : 0.0f));
  }
  if (a.tid2eid != nullptr) {
    for (int k = tid; k < a.topk; k += kThreads) chosen[k] = static_cast<uint32_t>(a.tid2eid[static_cast<int64_t>(id) * a.topk + k]);
  }
  __syncthreads();
  if (group_index() != 0) return;
  if (a.tid2eid == nullptr) {
    uint32_t choice[kPerLane] = {};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + i * kGroupLanes;
      if (e < a.experts_total) choice[i] = forms[e];
    }
    for (int k = 0; k < a.topk; ++k) {
      uint32_t top = 0, mine = 0xffffffffu;
      if (in_registers) {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          if (choice[i] > top) {
            top = choice[i];
            mine = static_cast<uint32_t>(lane + i * kGroupLanes);
          }
        }
      } else {
        for (int e = lane; e < a.experts_total; e += kGroupLanes) {
          if (forms[e] > top) {
            top = forms[e];
            mine = static_cast<uint32_t>(e);
          }
        }
      }
      const uint32_t best = group_min(top == group_max(top) ? mine : 0xffffffffu);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (best == static_cast<uint32_t>(lane + i * kGroupLanes)) choice[i] = 0;
      }
      if (!in_registers && best % kGroupLanes == static_cast<uint32_t>(lane)) forms[best] = 0;
      if (lane == 0) chosen[k] = best;
    }
    group_sync();
  }
  float sum = 0;
  for (int k = 0; k < a.topk; ++k) sum += s[chosen[k]];
  for (int k = lane; k < a.topk; k += kGroupLanes) {
    out[k] = static_cast<int32_t>(chosen[k]);
    weights[k] = s[chosen[k]] / sum * a.scaling;
  }
}

}  // namespace

Status moe_route_portable(OpContext& context, const MoeRouteArgs& a) {
  const int total = static_cast<int>(a.logits.cols);
  const RouteArgs args = {rows_of(a.logits), total, a.bias, a.tid2eid, a.token_ids.data, static_cast<int>(a.experts.cols), a.scaling, rows_of(a.experts),
                          rows_of(a.weights)};
  return launch(gpu_context(context), "moe_route", route_rows, {.blocks_x = a.logits.rows, .threads = kThreads, .shared_bytes = 8 * total + 4 * args.topk},
                args);
}

}  // namespace dsv4::gpu
