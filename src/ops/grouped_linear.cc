#include "ops/grouped_linear.h"

#include <vector>

#include "ops/host.h"

namespace dsv4 {

Status check(const GroupedLinearArgs& a) {
  const char* op = "grouped_linear";
  DSV4_RETURN_IF_ERROR(check_weight(op, a.weight));
  if (a.groups < 1 || a.weight.n % a.groups != 0) {
    return invalid_argument("grouped_linear: " + std::to_string(a.weight.n) + " rows do not divide into " + std::to_string(a.groups) + " groups");
  }
  DSV4_RETURN_IF_ERROR(check_shape(op, "x", a.x.rows, a.x.cols, a.x.rows, a.groups * a.weight.k));
  return check_shape(op, "y", a.y.rows, a.y.cols, a.x.rows, a.weight.n);
}

OpCost cost(const GroupedLinearArgs& a) { return {a.weight.total_bytes() + 4 * a.x.rows * (a.x.cols + a.y.cols), 2 * a.x.rows * a.weight.n * a.weight.k}; }

Status grouped_linear_reference(OpContext& context, const GroupedLinearArgs& a) {
  const int64_t per_group = a.weight.n / a.groups, k = a.weight.k;
  reference::pool(context).parallel_for(a.weight.n, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> w(static_cast<size_t>(k));
    for (int64_t n = begin; n < end; ++n) {
      decode_weight_row(a.weight, n, w.data());
      for (int64_t t = 0; t < a.x.rows; ++t) a.y.row(t)[n] = reference::dot(a.x.row(t) + n / per_group * k, w.data(), k);
    }
  });
  return ok_status();
}

}  // namespace dsv4
