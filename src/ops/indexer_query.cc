#include "ops/indexer_query.h"

#include "ops/host.h"
#include "tensor/rounding.h"

namespace dsv4 {

void hadamard_transform(float* x, int64_t n) {
  for (int64_t stride = 1; stride < n; stride *= 2) {
    for (int64_t i = 0; i < n; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

Status check(const IndexerQueryArgs& a) {
  const char* op = "indexer_query";
  if (a.heads < 1 || a.q.cols % a.heads != 0) {
    return invalid_argument("indexer_query: " + std::to_string(a.q.cols) + " columns do not divide into " + std::to_string(a.heads) + " heads");
  }
  const int64_t dim = a.q.cols / a.heads;
  if ((dim & (dim - 1)) != 0 || dim % kIndexGroup != 0) {
    return invalid_argument("indexer_query: head_dim is " + std::to_string(dim) + ", a power of two of at least 32 is needed");
  }
  if (a.cos_sin.cols % 2 != 0 || a.cos_sin.cols > dim) {
    return invalid_argument("indexer_query: cannot rotate " + std::to_string(a.cos_sin.cols) + " of " + std::to_string(dim) + " values");
  }
  return check_shape(op, "cos_sin", a.cos_sin.rows, a.cos_sin.cols, a.q.rows, a.cos_sin.cols);
}

OpCost cost(const IndexerQueryArgs& a) { return {a.q.rows * (8 * a.q.cols + 4 * a.cos_sin.cols), 8 * a.q.rows * a.q.cols}; }

Status indexer_query_reference(OpContext& context, const IndexerQueryArgs& a) {
  const int64_t dim = a.q.cols / a.heads, rope = a.cos_sin.cols;
  reference::for_each_row(context, a.q.rows, [&](int64_t t) {
    for (int64_t h = 0; h < a.heads; ++h) {
      float* q = a.q.row(t) + h * dim;
      reference::rotate_pairs(q + dim - rope, a.cos_sin.row(t), rope, 1.0f);
      hadamard_transform(q, dim);
      if (a.round_e2m1) round_e2m1(q, dim, kIndexGroup, q);
    }
  });
  return ok_status();
}

}  // namespace dsv4
