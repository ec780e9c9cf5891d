// hc_pre, hc_post, hc_head. All that decides a row's input, from the product with fn to the norm, is computed in double and rounded
// once: the result is rounded to E4M3 next, where one float32 ulp decides (a tie of the random test model lies one ulp away). Plain
// code without vectors of its own: products of floats are exact in double and the order of sums is fixed, so every instruction set
// gives the same bits. Bound by arithmetic: 24 x 4D multiply-adds a row (0.4 million at D 4096).
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "tensor/dtype.h"

namespace dsv4 {
namespace {

constexpr int64_t kMaxStreams = 8;
constexpr int64_t kSlice = 1024;  // values of d per task where one row is cut

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Sum of a[i] * b[i] in 8 interleaved partial sums.
double dot(const float* a, const float* b, int64_t n) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += static_cast<double>(a[i + l]) * b[i + l];
  }
  double sum = 0;
  for (; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  for (const double lane : lanes) sum += lane;
  return sum;
}

// 1 / sqrt(mean(f^2) + eps): the r of the mixes.
double inverse_root(const float* f, int64_t n, float eps) { return 1.0 / std::sqrt(dot(f, f, n) / static_cast<double>(n) + static_cast<double>(eps)); }

// x = RMSNorm(sum_i pre[i] * f[i * dim ..], norm). Two passes, so that nothing but x is written.
void collapse_and_norm(const float* f, const double* pre, int64_t streams, int64_t dim, const uint16_t* norm, float eps, float* x) {
  const auto mixed = [&](int64_t d) {
    double sum = 0;
    for (int64_t i = 0; i < streams; ++i) sum += pre[i] * f[i * dim + d];
    return sum;
  };
  double square = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double v = mixed(d);
    square += v * v;
  }
  const double scale = 1.0 / std::sqrt(square / static_cast<double>(dim) + static_cast<double>(eps));
  for (int64_t d = 0; d < dim; ++d) x[d] = static_cast<float>(static_cast<double>(bf16_to_float(norm[d])) * mixed(d) * scale);
}

// Softmax over rows, then sinkhorn_iters alternations of columns and rows; sums ascending.
template <int64_t kFixed>
void sinkhorn(double* c, int64_t streams, int64_t iterations, double eps) {
  const int64_t m = kFixed > 0 ? kFixed : streams;
  for (int64_t r = 0; r < m; ++r) {
    double top = c[r * m], sum = 0;
    for (int64_t k = 1; k < m; ++k) top = std::max(top, c[r * m + k]);
    for (int64_t k = 0; k < m; ++k) sum += c[r * m + k] = std::exp(c[r * m + k] - top);
    for (int64_t k = 0; k < m; ++k) c[r * m + k] = c[r * m + k] / sum + eps;
  }
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    if (iteration > 0) {
      for (int64_t r = 0; r < m; ++r) {
        double sum = 0;
        for (int64_t k = 0; k < m; ++k) sum += c[r * m + k];
        for (int64_t k = 0; k < m; ++k) c[r * m + k] /= sum + eps;
      }
    }
    double sum[kMaxStreams] = {};
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t k = 0; k < m; ++k) sum[k] += c[r * m + k];
    }
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t k = 0; k < m; ++k) c[r * m + k] /= sum[k] + eps;
    }
  }
}

}  // namespace

Status hc_pre_cpu(OpContext& context, const HcPreArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t m = a.streams, rows = a.h.rows, dim = a.x.cols;
  for_ranges(c, rows, 1, a.fn.rows * a.h.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* f = a.h.row(t);
      const double inverse = inverse_root(f, a.h.cols, a.rms_eps);
      const auto mixed = [&](int64_t i, int64_t kind) {
        return dot(a.fn.row(i), f, a.h.cols) * inverse * static_cast<double>(a.scale[kind]) + static_cast<double>(a.base[i]);
      };
      double pre[kMaxStreams], comb[kMaxStreams * kMaxStreams];
      for (int64_t i = 0; i < m; ++i) pre[i] = sigmoid(mixed(i, 0)) + static_cast<double>(a.hc_eps);
      for (int64_t i = 0; i < m; ++i) a.post.row(t)[i] = static_cast<float>(2.0 * sigmoid(mixed(m + i, 1)));
      for (int64_t i = 0; i < m * m; ++i) comb[i] = mixed(2 * m + i, 2);
      if (m == 4) {
        sinkhorn<4>(comb, m, a.sinkhorn_iters, static_cast<double>(a.hc_eps));
      } else {
        sinkhorn<0>(comb, m, a.sinkhorn_iters, static_cast<double>(a.hc_eps));
      }
      for (int64_t i = 0; i < m * m; ++i) a.comb.row(t)[i] = static_cast<float>(comb[i]);
      collapse_and_norm(f, pre, m, dim, a.norm, a.rms_eps, a.x.row(t));
    }
  });
  return ok_status();
}

Status hc_post_cpu(OpContext& context, const HcPostArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t m = a.post.cols, dim = a.y.cols, slices = (dim + kSlice - 1) / kSlice;
  for_ranges(c, a.y.rows * slices, 1, std::min(dim, kSlice) * m, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / slices, d = i % slices * kSlice;
      c.kernels->hc_expand(a.y.row(t) + d, a.post.row(t), a.comb.row(t), m, dim, std::min(kSlice, dim - d), a.h.row(t) + d);
    }
  });
  return ok_status();
}

Status hc_head_cpu(OpContext& context, const HcHeadArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t m = a.fn.rows, dim = a.x.cols;
  for_ranges(c, a.x.rows, 1, m * a.h.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      if (a.rows.data[r] < 0) {
        std::fill_n(a.x.row(r), dim, 0.0f);
        continue;
      }
      const float* f = a.h.row(a.rows.data[r]);
      const double inverse = inverse_root(f, a.h.cols, a.rms_eps);
      double pre[kMaxStreams];
      for (int64_t s = 0; s < m; ++s) {
        const double mix = dot(a.fn.row(s), f, a.h.cols) * inverse * static_cast<double>(a.scale[0]) + static_cast<double>(a.base[s]);
        pre[s] = sigmoid(mix) + static_cast<double>(a.hc_eps);
      }
      collapse_and_norm(f, pre, m, dim, a.norm, a.rms_eps, a.x.row(r));
    }
  });
  return ok_status();
}

}  // namespace dsv4
