// Expert choice. The scores are the reference's scalar arithmetic (a few hundred values per row), so the same experts are chosen; the
// top-k is a selection, not a sort.
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"

namespace dsv4 {

Status moe_route_cpu(OpContext& context, const MoeRouteArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t num_experts = a.logits.cols, topk = a.experts.cols;
  const int64_t bytes = 2 * CpuScratch::padded<float>(num_experts);
  if (!c.own.reset(c.pool->num_threads(), bytes)) return no_scratch("moe_route", bytes);

  for_ranges(c, a.logits.rows, 1, num_experts * 32, [&](int64_t begin, int64_t end, int thread) {
    CpuScratch& own = c.own[thread];
    float* s = own.take<float>(num_experts);
    float* choice = own.take<float>(num_experts);
    for (int64_t t = begin; t < end; ++t) {
      int32_t* experts = a.experts.row(t);
      float* weights = a.weights.row(t);
      const int32_t id = a.token_ids.data[t];
      if (id < 0) {
        std::fill_n(experts, topk, -1);
        std::fill_n(weights, topk, 0.0f);
        continue;
      }
      const auto score = [&](int64_t e) {
        const double x = a.logits.row(t)[e];
        return static_cast<float>(std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));  // softplus without overflow
      };
      if (a.tid2eid != nullptr) {
        for (int64_t k = 0; k < topk; ++k) {
          experts[k] = static_cast<int32_t>(a.tid2eid[id * topk + k]);
          s[experts[k]] = score(experts[k]);
        }
      } else {
        for (int64_t e = 0; e < num_experts; ++e) {
          s[e] = score(e);
          choice[e] = s[e] + a.bias[e];
        }
        for (int64_t k = 0; k < topk; ++k) {
          // The largest not yet taken, the lowest on ties; a NaN is taken only when nothing else is left.
          int32_t best = -1;
          for (int32_t e = 0; e < num_experts; ++e) {
            if (std::find(experts, experts + k, e) != experts + k) continue;
            if (best < 0 || choice[e] > choice[best] || (choice[best] != choice[best] && choice[e] == choice[e])) best = e;
          }
          experts[k] = best;
        }
      }
      float sum = 0;
      for (int64_t k = 0; k < topk; ++k) sum += s[experts[k]];
      for (int64_t k = 0; k < topk; ++k) weights[k] = s[experts[k]] / sum * a.scaling;
    }
  });
  return ok_status();
}

}  // namespace dsv4
