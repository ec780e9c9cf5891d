#include "ops/hc_pre.h"

#include <algorithm>
#include <vector>

#include "ops/host.h"

namespace dsv4 {

Status check(const HcPreArgs& a) {
  const char* op = "hc_pre";
  const int64_t m = a.streams;
  if (m < 1 || m > 8) return invalid_argument("hc_pre: " + std::to_string(m) + " streams, 1 to 8 are supported");
  if (a.sinkhorn_iters < 1) return invalid_argument("hc_pre: sinkhorn_iters is " + std::to_string(a.sinkhorn_iters) + ", at least 1 is needed");
  DSV4_RETURN_IF_ERROR(check_present(op, "base", a.base));
  DSV4_RETURN_IF_ERROR(check_present(op, "scale", a.scale));
  DSV4_RETURN_IF_ERROR(check_present(op, "norm", a.norm));
  DSV4_RETURN_IF_ERROR(check_shape(op, "fn", a.fn.rows, a.fn.cols, (2 + m) * m, a.h.cols));
  DSV4_RETURN_IF_ERROR(check_shape(op, "h", a.h.rows, a.h.cols, a.x.rows, m * a.x.cols));
  DSV4_RETURN_IF_ERROR(check_shape(op, "post", a.post.rows, a.post.cols, a.h.rows, m));
  return check_shape(op, "comb", a.comb.rows, a.comb.cols, a.h.rows, m * m);
}

OpCost cost(const HcPreArgs& a) {
  return {4 * (a.fn.rows * a.fn.cols + a.h.rows * (a.h.cols + a.x.cols + a.post.cols + a.comb.cols)) + 2 * a.x.cols,
          a.h.rows * (2 * a.fn.rows * a.fn.cols + 4 * a.h.cols)};
}

Status hc_pre_reference(OpContext& context, const HcPreArgs& a) {
  const int64_t m = a.streams, dim = a.x.cols;
  reference::for_each_row(context, a.h.rows, [&](int64_t t) {
    const float* f = a.h.row(t);
    const double root = std::sqrt(reference::mean_square(f, a.h.cols) + static_cast<double>(a.rms_eps));
    const double eps = static_cast<double>(a.hc_eps);
    std::vector<double> mix(static_cast<size_t>(a.fn.rows)), c(static_cast<size_t>(m * m)), x(static_cast<size_t>(dim), 0.0);
    const auto at = [&](int64_t r, int64_t k) -> double& { return c[static_cast<size_t>(r * m + k)]; };
    for (int64_t i = 0; i < a.fn.rows; ++i) {
      double sum = 0;
      for (int64_t d = 0; d < a.h.cols; ++d) sum += static_cast<double>(a.fn.row(i)[d]) * f[d];
      mix[static_cast<size_t>(i)] = sum / root * static_cast<double>(a.scale[i < m ? 0 : i < 2 * m ? 1 : 2]) + static_cast<double>(a.base[i]);
    }
    for (int64_t i = 0; i < m; ++i) a.post.row(t)[i] = static_cast<float>(2.0 * reference::sigmoid(mix[static_cast<size_t>(m + i)]));

    for (int64_t r = 0; r < m; ++r) {
      double top = -INFINITY, sum = 0;
      for (int64_t k = 0; k < m; ++k) top = std::max(top, at(r, k) = mix[static_cast<size_t>(2 * m + r * m + k)]);
      for (int64_t k = 0; k < m; ++k) sum += at(r, k) = std::exp(at(r, k) - top);
      for (int64_t k = 0; k < m; ++k) at(r, k) = at(r, k) / sum + eps;
    }
    const auto divide_columns = [&] {
      for (int64_t k = 0; k < m; ++k) {
        double sum = eps;
        for (int64_t r = 0; r < m; ++r) sum += at(r, k);
        for (int64_t r = 0; r < m; ++r) at(r, k) /= sum;
      }
    };
    divide_columns();
    for (int64_t iteration = 1; iteration < a.sinkhorn_iters; ++iteration) {
      for (int64_t r = 0; r < m; ++r) {
        double sum = eps;
        for (int64_t k = 0; k < m; ++k) sum += at(r, k);
        for (int64_t k = 0; k < m; ++k) at(r, k) /= sum;
      }
      divide_columns();
    }
    for (int64_t i = 0; i < m * m; ++i) a.comb.row(t)[i] = static_cast<float>(c[static_cast<size_t>(i)]);

    for (int64_t i = 0; i < m; ++i) {
      const double pre = reference::sigmoid(mix[static_cast<size_t>(i)]) + eps;
      for (int64_t d = 0; d < dim; ++d) x[static_cast<size_t>(d)] += pre * f[i * dim + d];
    }
    reference::rms_norm_row(x.data(), a.norm, dim, a.rms_eps, a.x.row(t));
  });
  return ok_status();
}

}  // namespace dsv4
