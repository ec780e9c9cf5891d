#include "ops/moe_experts.h"

#include <algorithm>
#include <vector>

#include "ops/host.h"
#include "tensor/rounding.h"

namespace dsv4 {

Status check(const MoeExpertsArgs& a) {
  const char* op = "moe_experts";
  const ExpertTable& e = a.table;
  for (const auto* p : {e.w1, e.w3, e.w2}) DSV4_RETURN_IF_ERROR(check_present(op, "an expert pointer array", p));
  if (e.format == WeightFormat::kMxfp4 || e.format == WeightFormat::kFp8Block) {
    for (const auto* p : {e.w1_scale, e.w3_scale, e.w2_scale}) DSV4_RETURN_IF_ERROR(check_present(op, "an expert scale array", p));
  }
  if (!(a.limit > 0)) return invalid_argument("moe_experts: limit is " + std::to_string(a.limit) + ", it must be positive");
  if (e.num_experts < 1 || e.ffn_dim < 1) return invalid_argument("moe_experts: the table has no experts");
  if (a.rounding == ActivationRounding::kE4M3 && (e.hidden_dim % kActivationGroup != 0 || e.ffn_dim % kActivationGroup != 0)) {
    return invalid_argument("moe_experts: sizes are " + std::to_string(e.hidden_dim) + " and " + std::to_string(e.ffn_dim) +
                            ", rounded activations need multiples of 128");
  }
  DSV4_RETURN_IF_ERROR(check_shape(op, "x", a.x.rows, a.x.cols, a.y.rows, e.hidden_dim));
  DSV4_RETURN_IF_ERROR(check_shape(op, "y", a.y.rows, a.y.cols, a.x.rows, e.hidden_dim));
  DSV4_RETURN_IF_ERROR(check_shape(op, "experts", a.experts.rows, a.experts.cols, a.x.rows, a.experts.cols));
  return check_shape(op, "weights", a.weights.rows, a.weights.cols, a.x.rows, a.experts.cols);
}

OpCost cost(const MoeExpertsArgs& a) {
  const ExpertTable& e = a.table;
  const WeightView w{e.format, nullptr, nullptr, e.ffn_dim, e.hidden_dim}, w2{e.format, nullptr, nullptr, e.hidden_dim, e.ffn_dim};
  const int64_t chosen = a.experts.rows * a.experts.cols;
  return {std::min(chosen, e.num_experts) * (2 * w.total_bytes() + w2.total_bytes()) + 12 * a.x.rows * a.x.cols + 8 * chosen,
          chosen * 6 * e.hidden_dim * e.ffn_dim};
}

Status moe_experts_reference(OpContext& context, const MoeExpertsArgs& a) {
  const ExpertTable& table = a.table;
  const int64_t dim = table.hidden_dim, ffn = table.ffn_dim;
  reference::for_each_row(context, a.x.rows, [&](int64_t t) {
    std::vector<float> x(a.x.row(t), a.x.row(t) + dim), act(static_cast<size_t>(ffn)), w(static_cast<size_t>(std::max(dim, ffn)));
    reference::round_activations(a.rounding, x.data(), dim, x.data());
    for (int64_t k = 0; k < a.experts.cols; ++k) {
      const int32_t e = a.experts.row(t)[k];
      if (e < 0) continue;
      const auto scale = [&](const uint8_t* const* p) { return p == nullptr ? nullptr : p[e]; };
      const WeightView w1{table.format, table.w1[e], scale(table.w1_scale), ffn, dim};
      const WeightView w3{table.format, table.w3[e], scale(table.w3_scale), ffn, dim};
      const WeightView w2{table.format, table.w2[e], scale(table.w2_scale), dim, ffn};
      for (int64_t i = 0; i < ffn; ++i) {
        decode_weight_row(w1, i, w.data());
        const float g = std::min(reference::dot(x.data(), w.data(), dim), a.limit);
        decode_weight_row(w3, i, w.data());
        const float u = std::clamp(reference::dot(x.data(), w.data(), dim), -a.limit, a.limit);
        act[static_cast<size_t>(i)] = static_cast<float>(g * reference::sigmoid(g) * u * a.weights.row(t)[k]);
      }
      reference::round_activations(a.rounding, act.data(), ffn, act.data());
      for (int64_t i = 0; i < dim; ++i) {
        decode_weight_row(w2, i, w.data());
        a.y.row(t)[i] += reference::dot(act.data(), w.data(), ffn);
      }
    }
  });
  return ok_status();
}

}  // namespace dsv4
