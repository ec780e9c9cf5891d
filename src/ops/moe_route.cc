#include "ops/moe_route.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/host.h"

namespace dsv4 {

Status check(const MoeRouteArgs& a) {
  const char* op = "moe_route";
  if ((a.bias == nullptr) == (a.tid2eid == nullptr)) return invalid_argument("moe_route: exactly one of bias and tid2eid is needed");
  if (a.experts.cols < 1 || a.experts.cols > a.logits.cols) {
    return invalid_argument("moe_route: top-k is " + std::to_string(a.experts.cols) + " of " + std::to_string(a.logits.cols) + " experts");
  }
  DSV4_RETURN_IF_ERROR(check_size(op, "token_ids", a.token_ids.size, a.logits.rows));
  DSV4_RETURN_IF_ERROR(check_shape(op, "experts", a.experts.rows, a.experts.cols, a.logits.rows, a.experts.cols));
  return check_shape(op, "weights", a.weights.rows, a.weights.cols, a.logits.rows, a.experts.cols);
}

OpCost cost(const MoeRouteArgs& a) {
  return {4 * a.logits.rows * (a.logits.cols + 2 * a.experts.cols + 1) + 4 * a.logits.cols, 8 * a.logits.rows * a.logits.cols};
}

Status moe_route_reference(OpContext& context, const MoeRouteArgs& a) {
  const int64_t num_experts = a.logits.cols, topk = a.experts.cols;
  reference::for_each_row(context, a.logits.rows, [&](int64_t t) {
    int32_t* experts = a.experts.row(t);
    float* weights = a.weights.row(t);
    const int32_t id = a.token_ids.data[t];
    if (id < 0) {
      std::fill(experts, experts + topk, -1);
      std::fill(weights, weights + topk, 0.0f);
      return;
    }
    std::vector<float> s(static_cast<size_t>(num_experts)), choice(s.size());
    for (size_t e = 0; e < s.size(); ++e) {
      const double x = a.logits.row(t)[e];
      s[e] = static_cast<float>(std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));  // softplus without overflow
    }
    if (a.tid2eid != nullptr) {
      for (int64_t k = 0; k < topk; ++k) experts[k] = static_cast<int32_t>(a.tid2eid[id * topk + k]);
    } else {
      for (size_t e = 0; e < s.size(); ++e) choice[e] = s[e] + a.bias[e];
      std::vector<int32_t> order(s.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) { return choice[static_cast<size_t>(x)] > choice[static_cast<size_t>(y)]; });
      std::copy(order.begin(), order.begin() + topk, experts);
    }
    float sum = 0;
    for (int64_t k = 0; k < topk; ++k) sum += s[static_cast<size_t>(experts[k])];
    for (int64_t k = 0; k < topk; ++k) weights[k] = s[static_cast<size_t>(experts[k])] / sum * a.scaling;
  });
  return ok_status();
}

}  // namespace dsv4
