#include "ops/swiglu.h"

#include <algorithm>

#include "ops/host.h"

namespace dsv4 {

Status check(const SwigluArgs& a) {
  if (!(a.limit > 0)) return invalid_argument("swiglu: limit is " + std::to_string(a.limit) + ", it must be positive");
  DSV4_RETURN_IF_ERROR(check_shape("swiglu", "up", a.up.rows, a.up.cols, a.gate.rows, a.gate.cols));
  return check_shape("swiglu", "out", a.out.rows, a.out.cols, a.gate.rows, a.gate.cols);
}

OpCost cost(const SwigluArgs& a) { return {12 * a.gate.rows * a.gate.cols, 6 * a.gate.rows * a.gate.cols}; }

Status swiglu_reference(OpContext& context, const SwigluArgs& a) {
  reference::for_each_row(context, a.gate.rows, [&](int64_t t) {
    for (int64_t i = 0; i < a.gate.cols; ++i) {
      const float g = std::min(a.gate.row(t)[i], a.limit), u = std::clamp(a.up.row(t)[i], -a.limit, a.limit);
      a.out.row(t)[i] = static_cast<float>(g * reference::sigmoid(g) * u);
    }
  });
  return ok_status();
}

}  // namespace dsv4
