#include "ops/argmax.h"

#include "ops/host.h"

namespace dsv4 {

Status check(const ArgmaxArgs& a) {
  if (a.logits.rows > 0 && a.logits.cols < 1) return invalid_argument("argmax: the logits have no columns");
  return check_size("argmax", "ids", a.ids.size, a.logits.rows);
}

OpCost cost(const ArgmaxArgs& a) { return {4 * a.logits.rows * (a.logits.cols + 1), 0}; }

Status argmax_reference(OpContext& context, const ArgmaxArgs& a) {
  reference::for_each_row(context, a.logits.rows, [&](int64_t r) {
    const float* x = a.logits.row(r);
    int32_t best = 0;
    for (int64_t i = 0; i < a.logits.cols; ++i) {
      if (x[i] != x[i]) {
        best = -1;
        break;
      }
      if (x[i] > x[best]) best = static_cast<int32_t>(i);
    }
    a.ids.data[r] = best;
  });
  return ok_status();
}

}  // namespace dsv4
