#include "verify/attention_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/rope_table.h"

namespace dsv4 {
namespace {

// The rows the token sees, in the operator's order, decoded.
Result<std::vector<std::vector<float>>> seen_rows(CacheReader& cache, const AttentionProblem& p) {
  std::vector<std::vector<float>> keys;
  const auto add = [&](CacheRowKind kind, int64_t row) -> Status {
    DSV4_ASSIGN_OR_RETURN(const CacheRow* found, cache.read(kind, p.layer, row));
    keys.push_back(found->values);
    return ok_status();
  };
  for (int64_t i = std::max<int64_t>(0, p.position - p.config.window_tokens + 1); i <= p.position; ++i) DSV4_RETURN_IF_ERROR(add(CacheRowKind::kWindow, i));
  const int32_t ratio = p.config.compress_ratios[static_cast<size_t>(p.layer)];
  if (ratio == 128) {
    for (int64_t j = 0; j < (p.position + 1) / ratio; ++j) DSV4_RETURN_IF_ERROR(add(CacheRowKind::kCompressed, j));
  } else if (ratio == 4) {
    for (const int32_t j : p.topk) {
      if (j < 0) break;
      DSV4_RETURN_IF_ERROR(add(CacheRowKind::kCompressed, j));
    }
  }
  return keys;
}

// Turns the last entries back by the position's angles (model.md 4, 5).
void rotate_back(const AttentionProblem& p, std::vector<double>* o) {
  const ModelConfig& c = p.config;
  const int64_t half = c.rope_head_dim / 2;
  std::vector<float> freqs(static_cast<size_t>(half));
  const bool compressed = c.layer_has_compressor(p.layer);
  const YarnScaling yarn{c.yarn_factor, c.yarn_original_positions, c.yarn_beta_fast, c.yarn_beta_slow};
  rope_frequencies(c.rope_head_dim, compressed ? c.compress_rope_theta : c.rope_theta, compressed ? &yarn : nullptr, freqs.data());
  double* x = o->data() + (c.head_dim - c.rope_head_dim);
  for (int64_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(p.position) * freqs[static_cast<size_t>(i)];
    const double cos = std::cos(static_cast<double>(angle)), sin = std::sin(static_cast<double>(angle));
    const double a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos + b * sin;
    x[2 * i + 1] = b * cos - a * sin;
  }
}

AttentionHead attend_head(const AttentionProblem& p, const std::vector<std::vector<float>>& keys, int64_t head) {
  const size_t dim = static_cast<size_t>(p.config.head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const float* q = p.q.data() + static_cast<size_t>(head) * dim;
  AttentionHead out;
  out.head = head;
  const double sink = p.sink[static_cast<size_t>(head)];
  std::vector<double> logits;
  double top = sink;
  for (size_t k = 0; k < keys.size(); ++k) {
    double dot = 0;
    for (size_t i = 0; i < dim; ++i) dot += static_cast<double>(q[i]) * keys[k][i];
    logits.push_back(dot * scale);
    if (!std::isfinite(logits.back()) && out.fault.empty())
      out.fault = fmt::format("the attention logit of head {} and key {} is {:g}", head, k, logits.back());
    top = std::max(top, logits.back());
  }
  out.largest_logit = top;
  double sum = std::exp(sink - top);
  for (double& l : logits) sum += l = std::exp(l - top);
  out.sink_share = std::exp(sink - top) / sum;
  std::vector<double> o(dim, 0.0);
  for (size_t k = 0; k < keys.size(); ++k) {
    const double share = logits[k] / sum;
    if (!(share >= 0 && share <= 1) && out.fault.empty()) out.fault = fmt::format("the probability of head {} and key {} is {:g}", head, k, share);
    for (size_t i = 0; i < dim; ++i) o[i] += share * keys[k][i];
  }
  rotate_back(p, &o);
  out.o.assign(o.begin(), o.end());
  return out;
}

}  // namespace

Result<std::vector<AttentionHead>> attend(CacheReader& cache, const AttentionProblem& problem) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> keys, seen_rows(cache, problem));
  std::vector<AttentionHead> out;
  for (const int64_t head : problem.heads) out.push_back(attend_head(problem, keys, head));
  return out;
}

}  // namespace dsv4
