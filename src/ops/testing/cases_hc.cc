// Hyper-connections: hc_pre, hc_post, hc_head, with the mixing matrices written out.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/testing/case_lists.h"
#include "ops/testing/case_tools.h"

namespace dsv4::optest {
namespace {

// mixes[i] = (fn_i . f) / sqrt(mean(f^2) + eps), and what float32 may be off.
Row mixes_of(const float* f, const std::vector<float>& fn, int64_t count, int64_t width, double eps) {
  Sum square;
  for (int64_t i = 0; i < width; ++i) square.add(double{f[i]} * f[i]);
  const double root = std::sqrt(square.value / static_cast<double>(width) + eps);
  const double relative = (square.value > 0 ? square.error() / square.value / 2 : 0) + 5 * kUnit;
  Row out;
  for (int64_t i = 0; i < count; ++i) {
    const Sum s = dot(fn.data() + i * width, f, width);
    out.value.push_back(s.value / root);
    out.error.push_back(s.error() / root + std::fabs(s.value / root) * relative);
  }
  return out;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// sigmoid(mix * scale + base), with its error: the argument's own (2 roundings), through the slope s (1 - s) (with room for its change),
// and 8 units for exp, sum and quotient.
struct Gate {
  double value = 0;
  double error = 0;
};
double argument_error(double mix, double mix_error, double scale, double base) {
  return std::fabs(scale) * mix_error + 2 * kUnit * (std::fabs(mix * scale) + std::fabs(base));
}
Gate gate(double mix, double mix_error, double scale, double base) {
  const double s = sigmoid(mix * scale + base), e = argument_error(mix, mix_error, scale, base);
  return {s, s * (1 - s) * e * 1.1 + 8 * kUnit * s};
}

// sum_i pre[i] h[i], then the norm.
Row mixed_and_normed(const std::vector<Gate>& pre, const float* f, int64_t dim, const std::vector<uint16_t>& norm, double eps) {
  Row x;
  for (int64_t d = 0; d < dim; ++d) {
    Sum s;
    double own = 0;
    for (size_t i = 0; i < pre.size(); ++i) {
      const double h = f[static_cast<int64_t>(i) * dim + d];
      s.add(pre[i].value * h);
      own += std::fabs(h) * pre[i].error;
    }
    x.value.push_back(s.value);
    x.error.push_back(own + s.error());
  }
  return normed(x, norm.data(), eps);
}

struct Hc {
  int64_t rows = 1, dim = 256, streams = 4, iters = 20, pad = 0;
  double scale_of_base = 1;
  double mix_scale = 1;  // large: sigmoids and the softmax saturate
};

void build_hc_pre(Problem& p, const Hc& c) {
  p.num_rows = c.rows;
  const int64_t m = c.streams, width = m * c.dim, count = (2 + m) * m;
  const std::vector<float> h = p.rng.activations(c.rows * width, 1), fn = p.rng.activations(count * width, 1 / std::sqrt(static_cast<double>(width)));
  const std::vector<float> base = p.rng.activations(count, c.scale_of_base);
  const std::vector<float> scale = {static_cast<float>(0.7 * c.mix_scale), static_cast<float>(1.3 * c.mix_scale), static_cast<float>(0.9 * c.mix_scale)};
  const std::vector<uint16_t> norm = norm_weight(p.rng, c.dim);
  const float eps = 1e-6f;
  const int ht = p.add_rows("h", width, c.pad, h);
  const int ft = p.add("fn", Role::kInput, false, count, width, c.pad, fn);
  const int bt = p.add_vector("base", base), st = p.add_vector("scale", scale), nt = p.add_vector("norm", norm);
  const int xt = p.add_output<float>("x", c.dim, c.pad), pt = p.add_output<float>("post", m, c.pad), ct = p.add_output<float>("comb", m * m, c.pad);
  p.call = [=, iters = c.iters](Device& d, const Bound& b) {
    const HcPreArgs args{b.matrix<float>(ht), b.matrix<float>(ft), b.pointer<float>(bt), b.pointer<float>(st), b.pointer<uint16_t>(nt), m, iters, eps, eps,
                         b.matrix<float>(xt), b.matrix<float>(pt), b.matrix<float>(ct)};
    return run_op("hc_pre", d.context(), d.ops().hc_pre, args);
  };
  Truth x, post, comb;
  // The norm takes out a common factor of the mix, not what the weights of the streams are off against each other: 4 gates of 8 units
  // and the mixes' share, sum_global of the long product.
  x.global = sum_global(width) + kUnit * norm_units(c.dim) + 16 * kUnit;
  post.global = sum_global(width) * 2 * c.mix_scale + 16 * kUnit;
  comb.global = 2 * (sum_global(width) * 2 * c.mix_scale + 16 * kUnit);
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* f = h.data() + t * width;
    const Row mix = mixes_of(f, fn, count, width, eps);
    const auto at = [&](int64_t i) { return std::pair(mix.value[static_cast<size_t>(i)], mix.error[static_cast<size_t>(i)]); };
    std::vector<Gate> pre;
    for (int64_t i = 0; i < m; ++i) {
      pre.push_back(gate(at(i).first, at(i).second, scale[0], base[static_cast<size_t>(i)]));
      pre.back().value += eps;
      const Gate g = gate(at(m + i).first, at(m + i).second, scale[1], base[static_cast<size_t>(m + i)]);
      post.push(2 * g.value, 2 * g.error);
    }
    const Row row = mixed_and_normed(pre, f, c.dim, norm, eps);
    for (size_t i = 0; i < row.value.size(); ++i) x.push(row.value[i], row.error[i]);

    std::vector<std::vector<double>> a(static_cast<size_t>(m), std::vector<double>(static_cast<size_t>(m)));
    double worst_argument = 0, largest = 0;
    for (int64_t j = 0; j < m; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < m; ++k) {
        const int64_t i = 2 * m + j * m + k;
        const double argument = at(i).first * scale[2] + base[static_cast<size_t>(i)];
        worst_argument = std::max(worst_argument, argument_error(at(i).first, at(i).second, scale[2], base[static_cast<size_t>(i)]));
        largest = std::max(largest, std::fabs(argument));
        sum += a[static_cast<size_t>(j)][static_cast<size_t>(k)] = std::exp(argument);
      }
      for (double& v : a[static_cast<size_t>(j)]) v = v / sum + eps;
    }
    const auto divide = [&](bool columns) {
      for (size_t i = 0; i < a.size(); ++i) {
        double sum = 0;
        for (size_t k = 0; k < a.size(); ++k) sum += columns ? a[k][i] : a[i][k];
        for (size_t k = 0; k < a.size(); ++k) (columns ? a[k][i] : a[i][k]) /= sum + eps;
      }
    };
    divide(true);
    for (int64_t i = 1; i < c.iters; ++i) {
      divide(false);
      divide(true);
    }
    // Relative errors of the softmax: the argument's (twice, through the sum), the rounded difference to the row's maximum, and 8 units.
    // A normalization takes the weighted mean out of the relative errors of a row or column; that is a projection, so their weighted
    // norm, at most sqrt(m) (all columns sum to 1) times the largest, does not grow, and each adds its own m + 3 units.
    const double start = 2 * worst_argument + kUnit * (4 * largest + 8), rounding = 2 * static_cast<double>(c.iters) * static_cast<double>(m + 3) * kUnit;
    for (const auto& r : a) {
      for (const double v : r) comb.push(v, std::sqrt(static_cast<double>(m) * v) * (start + rounding));
    }
  }
  p.judge = [&p, xt, pt, ct, x, post, comb](const Images& actual, const Images*, Verdict& v) {
    judge_floats(p, xt, x, actual, v);
    judge_floats(p, pt, post, actual, v);
    judge_floats(p, ct, comb, actual, v);
  };
}

void build_hc_post(Problem& p, const Hc& c) {
  p.num_rows = c.rows;
  const int64_t m = c.streams;
  const std::vector<float> y = p.rng.activations(c.rows * c.dim, 1), h = p.rng.activations(c.rows * m * c.dim, 1);
  const std::vector<float> post = p.rng.activations(c.rows * m, 1), comb = p.rng.activations(c.rows * m * m, 0.5);
  const int yt = p.add_rows("y", c.dim, c.pad, y), pt = p.add_rows("post", m, c.pad, post), ct = p.add_rows("comb", m * m, c.pad, comb);
  const int ht = p.add("h", Role::kUpdated, true, c.rows, m * c.dim, 2 * c.pad, h);
  p.call = [=](Device& d, const Bound& b) {
    const HcPostArgs args{b.matrix<float>(yt), b.matrix<float>(pt), b.matrix<float>(ct), b.matrix<float>(ht)};
    return run_op("hc_post", d.context(), d.ops().hc_post, args);
  };
  Truth truth;
  truth.global = 4 * kUnit;
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t k = 0; k < m; ++k) {
      for (int64_t i = 0; i < c.dim; ++i) {
        double v = double{post[static_cast<size_t>(t * m + k)]} * y[static_cast<size_t>(t * c.dim + i)], magnitude = std::fabs(v);
        for (int64_t j = 0; j < m; ++j) {
          const double term = double{comb[static_cast<size_t>((t * m + j) * m + k)]} * h[static_cast<size_t>((t * m + j) * c.dim + i)];
          v += term;
          magnitude += std::fabs(term);
        }
        truth.push(v, kUnit * static_cast<double>(m + 1) * magnitude);  // m + 1 terms: each is in at most m sums and one product
      }
    }
  }
  p.judge = [&p, ht, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, ht, truth, actual, v); };
}

struct HcHead {
  int64_t rows = 1, source_rows = 5, dim = 256, streams = 4, pad = 0;
};

void build_hc_head(Problem& p, const HcHead& c) {
  p.num_rows = c.rows;
  const int64_t m = c.streams, width = m * c.dim;
  const std::vector<float> fn = p.rng.activations(m * width, 1 / std::sqrt(static_cast<double>(width))), base = p.rng.activations(m, 1), scale = {0.8f};
  std::vector<float> h = p.rng.activations(c.source_rows * width, 1);
  const std::vector<uint16_t> norm = norm_weight(p.rng, c.dim);
  const float eps = 1e-6f;
  // Chosen rows out of order, the last one twice, some -1; rows nobody chose hold NaN.
  std::vector<int32_t> rows;
  std::vector<bool> chosen(static_cast<size_t>(c.source_rows));
  for (int64_t r = 0; r < c.rows; ++r) {
    rows.push_back(r % 4 == 2 ? -1 : static_cast<int32_t>(r == 0 ? c.source_rows - 1 : c.source_rows - 1 - r * 2 % c.source_rows));
    if (rows.back() >= 0) chosen[static_cast<size_t>(rows.back())] = true;
  }
  for (int64_t r = 0; r < c.source_rows; ++r) {
    if (!chosen[static_cast<size_t>(r)]) std::fill_n(h.begin() + r * width, width, std::numeric_limits<float>::quiet_NaN());
  }
  const int ht = p.add("h", Role::kInput, false, c.source_rows, width, c.pad, h);
  const int rt = p.add_rows("rows", 1, 0, rows);
  const int ft = p.add("fn", Role::kInput, false, m, width, c.pad, fn);
  const int bt = p.add_vector("base", base), st = p.add_vector("scale", scale), nt = p.add_vector("norm", norm);
  const int xt = p.add_output<float>("x", c.dim, c.pad);
  p.call = [=](Device& d, const Bound& b) {
    const HcHeadArgs args{
        b.matrix<float>(ht), b.vector<int32_t>(rt), b.matrix<float>(ft), b.pointer<float>(bt), b.pointer<float>(st), b.pointer<uint16_t>(nt), eps, eps,
        b.matrix<float>(xt)};
    return run_op("hc_head", d.context(), d.ops().hc_head, args);
  };
  Truth truth;
  truth.global = sum_global(width) + kUnit * norm_units(c.dim) + 16 * kUnit;
  for (const int32_t r : rows) {
    if (r < 0) {
      for (int64_t i = 0; i < c.dim; ++i) truth.push(0, 0);
      continue;
    }
    const float* f = h.data() + r * width;
    const Row mix = mixes_of(f, fn, m, width, eps);
    std::vector<Gate> pre;
    for (size_t i = 0; i < static_cast<size_t>(m); ++i) {
      pre.push_back(gate(mix.value[i], mix.error[i], scale[0], base[i]));
      pre.back().value += eps;
    }
    const Row row = mixed_and_normed(pre, f, c.dim, norm, eps);
    for (size_t i = 0; i < row.value.size(); ++i) truth.push(row.value[i], row.error[i]);
  }
  p.judge = [&p, xt, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, xt, truth, actual, v); };
}

}  // namespace

void add_hc_cases(std::vector<OpCase>& cases) {
  const auto both = [&](const char* name, Hc c) {
    add_case(cases, "hc_pre", name, build_hc_pre, c);
    add_case(cases, "hc_post", name, build_hc_post, c);
  };
  both("zero_tokens", {.rows = 0});
  both("one_row_tiny_model", {});
  both("seven_rows_rand_model", {.rows = 7, .dim = 384});
  both("tile_plus_1", {.rows = 65, .dim = 128});
  both("odd_width", {.rows = 3, .dim = 131});
  both("strided_rows", {.rows = 5, .dim = 128, .pad = 8});
  both("strided_rows_odd", {.rows = 5, .dim = 127, .pad = 3});
  both("two_streams", {.rows = 4, .dim = 128, .streams = 2});
  both("eight_streams", {.rows = 3, .dim = 64, .streams = 8});
  both("v4_flash", {.rows = 2, .dim = 4096});
  both("v4_flash_several_rows", {.rows = 5, .dim = 4096});
  both("many_rows", {.rows = 131, .dim = 128});
  add_case(cases, "hc_pre", "one_sinkhorn_iteration", build_hc_pre, Hc{.rows = 3, .dim = 128, .iters = 1});
  add_case(cases, "hc_pre", "two_sinkhorn_iterations", build_hc_pre, Hc{.rows = 3, .dim = 128, .iters = 2});
  add_case(cases, "hc_pre", "saturated_gates", build_hc_pre, Hc{.rows = 6, .dim = 128, .scale_of_base = 12});
  add_case(cases, "hc_pre", "large_mixes", build_hc_pre, Hc{.rows = 6, .dim = 128, .mix_scale = 8});

  const auto head = [&](const char* name, HcHead c) { add_case(cases, "hc_head", name, build_hc_head, c); };
  head("zero_tokens", {.rows = 0});
  head("one_row_tiny_model", {});
  head("rows_out_of_order_and_padding", {.rows = 9, .source_rows = 21, .dim = 384});
  head("more_rows_than_source", {.rows = 13, .source_rows = 3, .dim = 128});
  head("strided_rows", {.rows = 5, .source_rows = 9, .dim = 128, .pad = 4});
  head("strided_rows_odd", {.rows = 5, .source_rows = 9, .dim = 129, .pad = 1});
  head("two_streams", {.rows = 3, .dim = 128, .streams = 2});
  head("v4_flash", {.rows = 2, .dim = 4096});
}

}  // namespace dsv4::optest
