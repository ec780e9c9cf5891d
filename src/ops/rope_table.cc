#include "ops/rope_table.h"

#include <algorithm>
#include <numbers>

#include "ops/host.h"

namespace dsv4 {

void rope_frequencies(int64_t rope_dim, double base, const YarnScaling* yarn, float* out) {
  const int64_t half = rope_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    // float32 exponent and power, as the checkpoint's reference computes them.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope_dim);
    out[i] = 1.0f / static_cast<float>(std::pow(base, static_cast<double>(exponent)));
  }
  if (yarn == nullptr) return;
  const auto dim = [&](double n) {
    return static_cast<double>(rope_dim) * std::log(static_cast<double>(yarn->original_positions) / (2.0 * std::numbers::pi * n)) / (2.0 * std::log(base));
  };
  const double low = std::max(std::floor(dim(yarn->beta_fast)), 0.0);
  double high = std::min(std::ceil(dim(yarn->beta_slow)), static_cast<double>(rope_dim - 1));
  if (high == low) high += 0.001;
  for (int64_t i = 0; i < half; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double f = out[i];
    out[i] = static_cast<float>(f / yarn->factor * ramp + f * (1.0 - ramp));
  }
}

Status check(const RopeTableArgs& a) { return check_shape("rope_table", "out", a.out.rows, a.out.cols, a.positions.size, 2 * a.freqs.size); }

OpCost cost(const RopeTableArgs& a) { return {4 * (a.out.rows * (a.out.cols + 1) + a.freqs.size), 2 * a.out.rows * a.out.cols}; }

Status rope_table_reference(OpContext& context, const RopeTableArgs& a) {
  reference::for_each_row(context, a.out.rows, [&](int64_t t) {
    const int32_t p = a.positions.data[t] + a.offset;
    for (int64_t i = 0; i < a.freqs.size; ++i) {
      const float angle = p < 0 || a.positions.data[t] < 0 ? 0.0f : static_cast<float>(p) * a.freqs.data[i];
      a.out.row(t)[2 * i] = std::cos(angle);
      a.out.row(t)[2 * i + 1] = std::sin(angle);
    }
  });
  return ok_status();
}

}  // namespace dsv4
