#include "ops/query_norm_rope.h"

#include "ops/host.h"

namespace dsv4 {

Status check(const QueryNormRopeArgs& a) {
  const char* op = "query_norm_rope";
  if (a.heads < 1 || a.q.cols % a.heads != 0) {
    return invalid_argument("query_norm_rope: " + std::to_string(a.q.cols) + " columns do not divide into " + std::to_string(a.heads) + " heads");
  }
  if (a.cos_sin.cols % 2 != 0 || a.cos_sin.cols > a.q.cols / a.heads) {
    return invalid_argument("query_norm_rope: cannot rotate " + std::to_string(a.cos_sin.cols) + " of " + std::to_string(a.q.cols / a.heads) + " values");
  }
  return check_shape(op, "cos_sin", a.cos_sin.rows, a.cos_sin.cols, a.q.rows, a.cos_sin.cols);
}

OpCost cost(const QueryNormRopeArgs& a) { return {a.q.rows * (8 * a.q.cols + 4 * a.cos_sin.cols), 4 * a.q.rows * a.q.cols}; }

Status query_norm_rope_reference(OpContext& context, const QueryNormRopeArgs& a) {
  const int64_t dim = a.q.cols / a.heads, rope = a.cos_sin.cols;
  reference::for_each_row(context, a.q.rows, [&](int64_t t) {
    for (int64_t h = 0; h < a.heads; ++h) {
      float* q = a.q.row(t) + h * dim;
      const double root = std::sqrt(reference::mean_square(q, dim) + static_cast<double>(a.eps));
      for (int64_t i = 0; i < dim; ++i) q[i] = static_cast<float>(q[i] / root);
      reference::rotate_pairs(q + dim - rope, a.cos_sin.row(t), rope, 1.0f);
    }
  });
  return ok_status();
}

}  // namespace dsv4
