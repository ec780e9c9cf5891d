#include "ops/testing/judge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

namespace dsv4::optest {
namespace {

std::string text(double x) {
  std::ostringstream s;
  s.precision(9);
  s << x;
  return s.str();
}

std::array<double, 256> make_e4m3_values() {
  std::array<double, 256> v{};
  for (int c = 0; c < 256; ++c) {
    const int exponent = (c >> 3) & 15, mantissa = c & 7;
    double x = exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
    if ((c & 127) == 127) x = std::numeric_limits<double>::quiet_NaN();
    v[static_cast<size_t>(c)] = (c & 128) != 0 ? -x : x;
  }
  return v;
}

// Accepts one value under scale s; 0 = fine, else how far it is from the nearest accepted one.
double distance(double value, double error, double s, RowRounding::Grid grid, double actual) {
  const auto round = [&](double x) { return (grid == RowRounding::Grid::kE4M3 ? nearest_e4m3(x / s) : nearest_e2m1(x / s)) * s; };
  const double low = round(value - error), high = round(value + error);
  if (low <= actual && actual <= high && round(actual) == actual) return 0;
  return std::isnan(actual) ? std::numeric_limits<double>::infinity() : std::max(std::min(std::fabs(actual - low), std::fabs(actual - high)), 1e-300);
}

}  // namespace

int ceil_log2(double x) {
  int exponent;
  return std::frexp(x, &exponent) == 0.5 ? exponent - 1 : exponent;
}

double e4m3_value(uint8_t code) {
  static const std::array<double, 256> values = make_e4m3_values();
  return values[code];
}

double e8m0_value(uint8_t code) { return code == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127); }

double e2m1_value(int nibble) {
  constexpr double kMagnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (nibble & 8) != 0 ? -kMagnitude[nibble & 7] : kMagnitude[nibble & 7];
}

double nearest_e4m3(double x) {
  const double a = std::min(std::fabs(x), 448.0);
  int exponent;
  std::frexp(a, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 1, -6) - 3);
  return std::copysign(std::min(std::nearbyint(a / step) * step, 448.0), x);
}

double nearest_e2m1(double x) {
  constexpr double kGrid[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double a = std::fabs(x);
  int c = 0;
  while (c < 7 && a > (kGrid[c] + kGrid[c + 1]) / 2) ++c;
  return std::copysign(kGrid[c], x);
}

double nearest_bf16(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const double step = std::ldexp(1.0, exponent - 8);
  return std::nearbyint(x / step) * step;
}

std::vector<double> weight_row(const WeightView& w, int64_t row) {
  std::vector<double> out(static_cast<size_t>(w.k));
  const uint8_t* bytes = w.data + row * w.row_bytes();
  switch (w.format) {
    case WeightFormat::kF32:
      for (int64_t c = 0; c < w.k; ++c) {
        float f;
        std::memcpy(&f, bytes + 4 * c, 4);
        out[static_cast<size_t>(c)] = f;
      }
      break;
    case WeightFormat::kBF16:
      for (int64_t c = 0; c < w.k; ++c) {
        const uint32_t u = static_cast<uint32_t>(bytes[2 * c]) << 16 | static_cast<uint32_t>(bytes[2 * c + 1]) << 24;
        float f;
        std::memcpy(&f, &u, 4);
        out[static_cast<size_t>(c)] = f;
      }
      break;
    case WeightFormat::kFp8Block:
      for (int64_t g = 0; g < w.k; g += 128) {
        const double scale = e8m0_value(w.scale[row / 128 * ((w.k + 127) / 128) + g / 128]);
        for (int64_t c = g; c < std::min(g + 128, w.k); ++c) out[static_cast<size_t>(c)] = e4m3_value(bytes[c]) * scale;
      }
      break;
    case WeightFormat::kMxfp4:
      for (int64_t g = 0; g < w.k; g += 32) {
        const double scale = e8m0_value(w.scale[row * (w.k / 32) + g / 32]);
        for (int64_t c = g; c < g + 32; ++c) out[static_cast<size_t>(c)] = e2m1_value(bytes[c / 2] >> (4 * (c % 2)) & 15) * scale;
      }
      break;
  }
  return out;
}

std::vector<double> rounded_activations(const std::vector<double>& x, ActivationRounding rounding) {
  std::vector<double> out = x;
  if (rounding == ActivationRounding::kNone) return out;
  if (rounding == ActivationRounding::kBF16) {
    for (double& v : out) v = nearest_bf16(v);
    return out;
  }
  for (size_t g = 0; g < x.size(); g += 128) {
    float amax = 1e-4f;
    for (size_t i = g; i < g + 128; ++i) amax = std::max(amax, static_cast<float>(std::fabs(x[i])));
    const float quotient = amax * (1.0f / 448.0f);  // the one float32 rounding the rule names
    const double s = std::ldexp(1.0, ceil_log2(quotient));
    for (size_t i = g; i < g + 128; ++i) out[i] = nearest_e4m3(x[i] / s) * s;
  }
  return out;
}

void judge_floats(const Problem& p, int tensor, const Truth& truth, const Images& actual, Verdict& verdict) {
  const Tensor& t = p.tensors[static_cast<size_t>(tensor)];
  DSV4_CHECK(static_cast<int64_t>(truth.value.size()) == t.rows * t.cols && truth.bound.size() == truth.value.size(), t.name.c_str());
  double error = 0, norm = 0;
  for (int64_t r = 0; r < t.rows; ++r) {
    const float* row = image_row<float>(p, actual, tensor, r);
    for (int64_t c = 0; c < t.cols; ++c) {
      const double want = truth.value[static_cast<size_t>(r * t.cols + c)], bound = truth.bound[static_cast<size_t>(r * t.cols + c)];
      const double got = row[c];
      ++verdict.compared;
      bool accepted;
      double diff = 0;
      if (std::isnan(want)) {
        accepted = std::isnan(got);
      } else if (std::isinf(want) || !std::isfinite(got)) {
        accepted = got == want;
      } else {
        diff = std::fabs(got - want);
        accepted = diff <= bound;
        error += diff * diff;
        norm += want * want;
        if (bound > 0) verdict.worst_ratio = std::max(verdict.worst_ratio, diff / bound);
      }
      if (!accepted) {
        verdict.refuse([&] {
          return t.name + "[" + std::to_string(r) + "][" + std::to_string(c) + "] is " + text(got) + ", expected " + text(want) + ", bound " + text(bound);
        });
      }
    }
  }
  if (norm == 0) return;
  const double relative = std::sqrt(error / norm);
  verdict.relative_l2 = std::max(verdict.relative_l2, relative);
  if (!(relative <= truth.global))
    verdict.refuse([&] { return t.name + ": relative L2 error is " + text(relative) + ", accepted up to " + text(truth.global); });
}

void judge_ints(const Problem& p, int tensor, const std::vector<int32_t>& expected, const Images& actual, Verdict& verdict) {
  const Tensor& t = p.tensors[static_cast<size_t>(tensor)];
  DSV4_CHECK(static_cast<int64_t>(expected.size()) == t.rows * t.cols, t.name.c_str());
  for (int64_t r = 0; r < t.rows; ++r) {
    const int32_t* row = image_row<int32_t>(p, actual, tensor, r);
    for (int64_t c = 0; c < t.cols; ++c) {
      ++verdict.compared;
      const int32_t want = expected[static_cast<size_t>(r * t.cols + c)];
      if (row[c] == want) continue;
      verdict.refuse([&] {
        return t.name + "[" + std::to_string(r) + "][" + std::to_string(c) + "] is " + std::to_string(row[c]) + ", expected " + std::to_string(want);
      });
    }
  }
}

void judge_rounded_row(const std::string& what, const RowTruth& truth, const RowRounding& rounding, const float* actual, Verdict& verdict) {
  const int64_t n = static_cast<int64_t>(truth.value.size());
  const auto at = [](const std::vector<double>& v, int64_t i) { return v[static_cast<size_t>(i)]; };
  verdict.compared += n;
  for (int64_t g = 0; g < rounding.rounded; g += rounding.group) {
    double low = 0, high = 0;  // of amax
    for (int64_t i = g; i < g + rounding.group; ++i) {
      low = std::max(low, std::fabs(at(truth.value, i)) - at(truth.error, i));
      high = std::max(high, std::fabs(at(truth.value, i)) + at(truth.error, i));
    }
    const bool e4m3 = rounding.grid == RowRounding::Grid::kE4M3;
    const double floor = e4m3 ? double{1e-4f} : 6 * 0x1p-126, top = e4m3 ? 448 : 6;
    // The float32 quotient deviates from the true one by the roundings of the reciprocal and of the product: 2 units.
    const int first = ceil_log2(std::max(low, floor) / top * (1 - 3 * kUnit)), last = ceil_log2(std::max(high, floor) / top * (1 + 3 * kUnit));
    double best = std::numeric_limits<double>::infinity();
    int64_t worst_at = g;
    for (int exponent = first; exponent <= last; ++exponent) {
      const double s = std::ldexp(1.0, exponent);
      double worst = 0;
      int64_t where = g;
      for (int64_t i = g; i < g + rounding.group; ++i) {
        const double d = distance(at(truth.value, i), at(truth.error, i), s, rounding.grid, actual[i]);
        if (d > worst) {
          worst = d;
          where = i;
        }
      }
      if (worst < best) {
        best = worst;
        worst_at = where;
      }
    }
    if (best == 0) continue;
    verdict.refuse([&] {
      return what + "[" + std::to_string(worst_at) + "] is " + text(actual[worst_at]) + ", no rounding of " + text(at(truth.value, worst_at)) + " +- " +
             text(at(truth.error, worst_at));
    });
  }
  for (int64_t i = rounding.rounded; i < n; ++i) {
    const double v = at(truth.value, i), e = at(truth.error, i), got = actual[i];
    const bool fine = rounding.bf16_rest ? nearest_bf16(v - e) <= got && got <= nearest_bf16(v + e) && got == nearest_bf16(got) : std::fabs(got - v) <= e;
    if (!rounding.bf16_rest && e > 0 && std::isfinite(got)) verdict.worst_ratio = std::max(verdict.worst_ratio, std::fabs(got - v) / e);
    if (!fine) verdict.refuse([&] { return what + "[" + std::to_string(i) + "] is " + text(got) + ", expected " + text(v) + ", bound " + text(e); });
  }
}

void judge_flips(int64_t compared, Verdict& verdict) {
  if (verdict.flips > 2 && verdict.flips * 1000 > compared) {
    verdict.refuse([&] { return std::to_string(verdict.flips) + " of " + std::to_string(compared) + " elements round to another side than the reference's"; });
  }
}

}  // namespace dsv4::optest
