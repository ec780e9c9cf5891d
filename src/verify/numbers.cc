#include "verify/numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsv4 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool has_nan(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

}  // namespace

double relative_error(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return kInfinity;
  double diff = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    diff += d * d;
    norm += static_cast<double>(want[i]) * want[i];
  }
  if (diff == 0) return 0;
  if (norm == 0) return kInfinity;
  return std::sqrt(diff / norm);
}

double cosine(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return 0;
  double dot = 0, a = 0, b = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    dot += static_cast<double>(got[i]) * want[i];
    a += static_cast<double>(got[i]) * got[i];
    b += static_cast<double>(want[i]) * want[i];
  }
  return a == 0 || b == 0 ? 0 : dot / std::sqrt(a * b);
}

int32_t argmax_of(std::span<const float> values) {
  int32_t best = -1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) continue;
    if (best < 0 || values[i] > values[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
  }
  return best;
}

double quantile(std::vector<double> values, double p) {
  if (values.empty() || has_nan(values)) return kNan;
  std::sort(values.begin(), values.end());
  const double at = p * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(std::floor(at)), high = std::min(low + 1, values.size() - 1);
  const double share = at - static_cast<double>(low);
  if (share == 0 || values[low] == values[high]) return values[low];  // an infinite neighbour of weight 0 must not make a NaN
  return values[low] + share * (values[high] - values[low]);
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

double log_sum_exp(std::span<const float> values) {
  if (values.empty()) return -kInfinity;
  double top = -kInfinity, sum = 0;
  for (const float v : values) top = std::max(top, static_cast<double>(v));
  if (!std::isfinite(top)) return top;
  for (const float v : values) sum += std::exp(v - top);
  return top + std::log(sum);
}

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  if (p_logits.size() != q_logits.size()) return kInfinity;
  const double p_sum = log_sum_exp(p_logits), q_sum = log_sum_exp(q_logits);
  double out = 0;
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double log_p = p_logits[i] - p_sum;
    out += std::exp(log_p) * (log_p - (q_logits[i] - q_sum));
  }
  return out;
}

}  // namespace dsv4
