// moe_route: one lane group per token, its scores in shared memory; top_k rounds of a group-wide maximum. Latency-bound.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/runtime/kernel.h"

namespace dsv4::gpu {
namespace {

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

__global__ void __launch_bounds__(kGroupLanes) route_rows(RouteArgs a) {
  extern __shared__ float shared[];  // scores [E], then choice [E]: -inf once taken is told apart by `taken`
  float* s = shared;
  float* choice = shared + a.experts_total;
  uint8_t* taken = reinterpret_cast<uint8_t*>(choice + a.experts_total);
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.x;
  const int lane = group_lane();
  const int32_t id = a.token_ids[t];
  int32_t* out = a.experts.row(t);
  float* weights = a.weights.row(t);
  if (id < 0) {
    for (int k = lane; k < a.topk; k += kGroupLanes) {
      out[k] = -1;
      weights[k] = 0;
    }
    return;
  }
  for (int e = lane; e < a.experts_total; e += kGroupLanes) {
    const float x = a.logits.row(t)[e];
    s[e] = sqrtf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
    choice[e] = a.bias != nullptr ? s[e] + a.bias[e] : 0.0f;
    taken[e] = 0;
  }
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < a.topk; ++k) {
    int best = -1;
    if (a.tid2eid != nullptr) {
      best = static_cast<int>(a.tid2eid[static_cast<int64_t>(id) * a.topk + k]);
    } else {
      float top = 0;
      for (int e = lane; e < a.experts_total; e += kGroupLanes) {
        if (taken[e] == 0 && (best < 0 || choice[e] > top)) {
          best = e;
          top = choice[e];
        }
      }
      for (int m = kGroupLanes / 2; m > 0; m /= 2) {
        const int other = shuffle_xor(best, m);
        const float other_top = shuffle_xor(top, m);
        if (other >= 0 && (best < 0 || other_top > top || (other_top == top && other < best))) {
          best = other;
          top = other_top;
        }
      }
      if (best % kGroupLanes == lane) taken[best] = 1;
    }
    sum += s[best];
    if (lane == 0) out[k] = best;
  }
  __syncthreads();
  for (int k = lane; k < a.topk; k += kGroupLanes) weights[k] = s[out[k]] / sum * a.scaling;
}

}  // namespace

Status moe_route_portable(OpContext& context, const MoeRouteArgs& a) {
  const int total = static_cast<int>(a.logits.cols);
  const RouteArgs args = {rows_of(a.logits), total, a.bias, a.tid2eid, a.token_ids.data, static_cast<int>(a.experts.cols), a.scaling, rows_of(a.experts), rows_of(a.weights)};
  return launch(gpu_context(context), "moe_route", route_rows, {.blocks_x = a.logits.rows, .threads = kGroupLanes, .shared_bytes = 9 * total}, args);
}

}  // namespace dsv4::gpu
