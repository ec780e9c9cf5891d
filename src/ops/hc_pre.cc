#include "ops/hc_pre.h"

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
    const float root = std::sqrt(reference::mean_square(f, a.h.cols) + a.rms_eps);
    std::vector<float> mixes(static_cast<size_t>(a.fn.rows)), comb(static_cast<size_t>(m * m));
    for (int64_t i = 0; i < a.fn.rows; ++i) mixes[static_cast<size_t>(i)] = reference::dot(a.fn.row(i), f, a.h.cols) / root;
    const float* mix = mixes.data();
    float* c = comb.data();
    for (int64_t i = 0; i < m; ++i) a.post.row(t)[i] = 2.0f * reference::sigmoid(mix[m + i] * a.scale[1] + a.base[m + i]);

    for (int64_t i = 0; i < m * m; ++i) c[i] = mix[2 * m + i] * a.scale[2] + a.base[2 * m + i];
    for (int64_t r = 0; r < m; ++r) {
      float top = c[r * m], sum = 0;
      for (int64_t k = 1; k < m; ++k) top = std::max(top, c[r * m + k]);
      for (int64_t k = 0; k < m; ++k) sum += c[r * m + k] = std::exp(c[r * m + k] - top);
      for (int64_t k = 0; k < m; ++k) c[r * m + k] = c[r * m + k] / sum + a.hc_eps;
    }
    const auto divide_columns = [&] {
      for (int64_t k = 0; k < m; ++k) {
        float sum = 0;
        for (int64_t r = 0; r < m; ++r) sum += c[r * m + k];
        for (int64_t r = 0; r < m; ++r) c[r * m + k] /= sum + a.hc_eps;
      }
    };
    divide_columns();
    for (int64_t iteration = 1; iteration < a.sinkhorn_iters; ++iteration) {
      for (int64_t r = 0; r < m; ++r) {
        float sum = 0;
        for (int64_t k = 0; k < m; ++k) sum += c[r * m + k];
        for (int64_t k = 0; k < m; ++k) c[r * m + k] /= sum + a.hc_eps;
      }
      divide_columns();
    }
    for (int64_t i = 0; i < m * m; ++i) a.comb.row(t)[i] = c[i];

    float* x = a.x.row(t);
    for (int64_t d = 0; d < dim; ++d) x[d] = 0;
    for (int64_t i = 0; i < m; ++i) {
      const float pre = reference::sigmoid(mix[i] * a.scale[0] + a.base[i]) + a.hc_eps;
      for (int64_t d = 0; d < dim; ++d) x[d] += pre * f[i * dim + d];
    }
    reference::rms_norm_row(x, a.norm, dim, a.rms_eps, x);
  });
  return ok_status();
}

}  // namespace dsv4
