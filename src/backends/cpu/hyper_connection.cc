// hc_pre, hc_post, hc_head. All that decides a row's input, from the product with fn to the norm, is computed in double and rounded once
// (hc_kernels.cc).
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"

namespace dsv4 {
namespace {

constexpr int64_t kSlice = 1024;  // values of d per task where one row is cut
constexpr int64_t kMaxMixes = kMaxStreams * (2 + kMaxStreams);
constexpr int64_t kTaskRows = 8;  // rows of a task, where there are enough

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double inverse_root(double mean_square, float eps) { return 1.0 / std::sqrt(mean_square + static_cast<double>(eps)); }

}  // namespace

Status hc_pre_cpu(OpContext& context, const HcPreArgs& a) {
  CpuContext& c = cpu_context(context);
  const CpuKernels& kernels = *c.kernels;
  const int64_t m = a.streams, rows = a.h.rows, dim = a.x.cols, mixes = a.fn.rows;
  const int64_t grain = std::clamp<int64_t>(rows / (2 * c.pool->num_threads()), 1, kTaskRows);
  for_ranges(c, rows, grain, mixes * a.h.cols, [&](int64_t begin, int64_t end, int) {
    double mix[kTaskRows][kMaxMixes];
    for (int64_t t0 = begin; t0 < end; t0 += kTaskRows) {
      const int64_t count = std::min(kTaskRows, end - t0);
      const float* f[kTaskRows];
      double* out[kTaskRows];
      for (int64_t r = 0; r < count; ++r) {
        f[r] = a.h.row(t0 + r);
        out[r] = mix[r];
      }
      kernels.hc_dots(a.fn.data, a.fn.row_stride, mixes, f, count, a.h.cols, out);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t t = t0 + r;
        const double inverse = inverse_root(kernels.hc_mean_square(f[r], a.h.cols), a.rms_eps);
        const auto mixed = [&](int64_t i, int64_t kind) { return mix[r][i] * inverse * static_cast<double>(a.scale[kind]) + static_cast<double>(a.base[i]); };
        double pre[kMaxStreams], comb[kMaxStreams * kMaxStreams];
        for (int64_t i = 0; i < m; ++i) pre[i] = sigmoid(mixed(i, 0)) + static_cast<double>(a.hc_eps);
        for (int64_t i = 0; i < m; ++i) a.post.row(t)[i] = static_cast<float>(2.0 * sigmoid(mixed(m + i, 1)));
        for (int64_t i = 0; i < m * m; ++i) comb[i] = mixed(2 * m + i, 2);
        kernels.hc_sinkhorn(comb, m, a.sinkhorn_iters, static_cast<double>(a.hc_eps));
        for (int64_t i = 0; i < m * m; ++i) a.comb.row(t)[i] = static_cast<float>(comb[i]);
        kernels.hc_collapse(f[r], pre, m, dim, a.norm, a.rms_eps, a.x.row(t));
      }
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
      const double inverse = inverse_root(c.kernels->hc_mean_square(f, a.h.cols), a.rms_eps);
      double mix[kMaxStreams], pre[kMaxStreams];
      double* out = mix;
      c.kernels->hc_dots(a.fn.data, a.fn.row_stride, m, &f, 1, a.h.cols, &out);
      for (int64_t s = 0; s < m; ++s) {
        pre[s] = sigmoid(mix[s] * inverse * static_cast<double>(a.scale[0]) + static_cast<double>(a.base[s])) + static_cast<double>(a.hc_eps);
      }
      c.kernels->hc_collapse(f, pre, m, dim, a.norm, a.rms_eps, a.x.row(r));
    }
  });
  return ok_status();
}

}  // namespace dsv4
