#include "ops/hc_post.h"

#include <vector>

#include "ops/host.h"

namespace dsv4 {

Status check(const HcPostArgs& a) {
  const char* op = "hc_post";
  const int64_t m = a.post.cols;
  if (m < 1 || m > 8) return invalid_argument("hc_post: " + std::to_string(m) + " streams, 1 to 8 are supported");
  DSV4_RETURN_IF_ERROR(check_shape(op, "post", a.post.rows, a.post.cols, a.y.rows, m));
  DSV4_RETURN_IF_ERROR(check_shape(op, "comb", a.comb.rows, a.comb.cols, a.y.rows, m * m));
  return check_shape(op, "h", a.h.rows, a.h.cols, a.y.rows, m * a.y.cols);
}

OpCost cost(const HcPostArgs& a) { return {4 * a.y.rows * (a.y.cols + a.post.cols + a.comb.cols + 2 * a.h.cols), 2 * a.y.rows * (a.post.cols + 1) * a.h.cols}; }

Status hc_post_reference(OpContext& context, const HcPostArgs& a) {
  const int64_t m = a.post.cols, dim = a.y.cols;
  reference::for_each_row(context, a.y.rows, [&](int64_t t) {
    const std::vector<float> old(a.h.row(t), a.h.row(t) + m * dim);
    for (int64_t k = 0; k < m; ++k) {
      float* out = a.h.row(t) + k * dim;
      for (int64_t d = 0; d < dim; ++d) {
        double sum = static_cast<double>(a.post.row(t)[k]) * a.y.row(t)[d];
        for (int64_t j = 0; j < m; ++j) sum += static_cast<double>(a.comb.row(t)[j * m + k]) * old[static_cast<size_t>(j * dim + d)];
        out[d] = static_cast<float>(sum);
      }
    }
  });
  return ok_status();
}

}  // namespace dsv4
