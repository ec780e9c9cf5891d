#include "ops/hc_head.h"

#include <algorithm>
#include <vector>

#include "ops/host.h"

namespace dsv4 {

Status check(const HcHeadArgs& a) {
  const char* op = "hc_head";
  const int64_t m = a.fn.rows;
  if (m < 1 || m > 8) return invalid_argument("hc_head: " + std::to_string(m) + " streams, 1 to 8 are supported");
  DSV4_RETURN_IF_ERROR(check_present(op, "base", a.base));
  DSV4_RETURN_IF_ERROR(check_present(op, "scale", a.scale));
  DSV4_RETURN_IF_ERROR(check_present(op, "norm", a.norm));
  DSV4_RETURN_IF_ERROR(check_size(op, "rows", a.rows.size, a.x.rows));
  DSV4_RETURN_IF_ERROR(check_shape(op, "fn", a.fn.rows, a.fn.cols, m, a.h.cols));
  return check_shape(op, "h", a.h.rows, a.h.cols, a.h.rows, m * a.x.cols);
}

OpCost cost(const HcHeadArgs& a) {
  return {4 * (a.fn.rows * a.fn.cols + a.x.rows * (a.h.cols + a.x.cols + 1)) + 2 * a.x.cols, a.x.rows * (2 * a.fn.rows * a.fn.cols + 4 * a.h.cols)};
}

Status hc_head_reference(OpContext& context, const HcHeadArgs& a) {
  const int64_t m = a.fn.rows, dim = a.x.cols;
  reference::for_each_row(context, a.x.rows, [&](int64_t r) {
    std::vector<double> x(static_cast<size_t>(dim), 0.0);
    if (a.rows.data[r] < 0) {
      std::fill(a.x.row(r), a.x.row(r) + dim, 0.0f);
      return;
    }
    const float* f = a.h.row(a.rows.data[r]);
    const double root = std::sqrt(reference::mean_square(f, a.h.cols) + static_cast<double>(a.rms_eps));
    for (int64_t i = 0; i < m; ++i) {
      double mix = 0;
      for (int64_t d = 0; d < a.h.cols; ++d) mix += static_cast<double>(a.fn.row(i)[d]) * f[d];
      const double pre = reference::sigmoid(mix / root * static_cast<double>(a.scale[0]) + static_cast<double>(a.base[i])) + static_cast<double>(a.hc_eps);
      for (int64_t d = 0; d < dim; ++d) x[static_cast<size_t>(d)] += pre * f[i * dim + d];
    }
    reference::rms_norm_row(x.data(), a.norm, dim, a.rms_eps, a.x.row(r));
  });
  return ok_status();
}

}  // namespace dsv4
