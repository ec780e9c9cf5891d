#include "ops/rms_norm.h"

#include "ops/host.h"

namespace dsv4 {

Status check(const RmsNormArgs& a) {
  DSV4_RETURN_IF_ERROR(check_present("rms_norm", "weight", a.weight));
  return check_shape("rms_norm", "out", a.out.rows, a.out.cols, a.x.rows, a.x.cols);
}

OpCost cost(const RmsNormArgs& a) { return {a.x.rows * a.x.cols * 8 + a.x.cols * 2, a.x.rows * a.x.cols * 4}; }

Status rms_norm_reference(OpContext& context, const RmsNormArgs& a) {
  reference::for_each_row(context, a.x.rows, [&](int64_t t) { reference::rms_norm_row(a.x.row(t), a.weight, a.x.cols, a.eps, a.out.row(t)); });
  return ok_status();
}

}  // namespace dsv4
