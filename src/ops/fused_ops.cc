#include "ops/fused_ops.h"

#include "ops/swiglu.h"

namespace dsv4 {
namespace {

LinearArgs into_shared(const MoeAllArgs& a) { return {a.routed.x, a.routed.rounding, 2, {{a.w1, a.gate}, {a.w3, a.up}}}; }
LinearArgs out_of_shared(const MoeAllArgs& a) { return {a.gate, a.routed.rounding, 1, {{a.w2, a.routed.y}}}; }

}  // namespace

Status check(const HcPostPreArgs& a) {
  DSV4_RETURN_IF_ERROR(check(a.post));
  DSV4_RETURN_IF_ERROR(check(a.pre));
  if (a.pre.h.data != a.post.h.data || a.pre.h.row_stride != a.post.h.row_stride || a.pre.h.rows != a.post.h.rows || a.pre.h.cols != a.post.h.cols) {
    return invalid_argument("hc_post_pre: the streams read are not the streams written");
  }
  return ok_status();
}

OpCost cost(const HcPostPreArgs& a) {
  const OpCost post = cost(a.post), pre = cost(a.pre);
  return {post.bytes + pre.bytes - 4 * a.pre.h.rows * a.pre.h.cols, post.flops + pre.flops};
}

Status check(const MoeAllArgs& a) {
  DSV4_RETURN_IF_ERROR(check(a.routed));
  DSV4_RETURN_IF_ERROR(check(into_shared(a)));
  DSV4_RETURN_IF_ERROR(check(SwigluArgs{a.gate, a.up, a.routed.limit, a.gate}));
  return check(out_of_shared(a));
}

OpCost cost(const MoeAllArgs& a) {
  const OpCost routed = cost(a.routed);
  const int64_t rows = a.routed.x.rows, width = a.w1.n + a.w3.n + a.w2.k;
  return {routed.bytes + a.w1.total_bytes() + a.w3.total_bytes() + a.w2.total_bytes(), routed.flops + 2 * rows * width * a.routed.x.cols};
}

Status check(const NormLinearArgs& a) {
  DSV4_RETURN_IF_ERROR(check(a.norm));
  DSV4_RETURN_IF_ERROR(check(a.linear));
  if (a.linear.x.data != a.norm.out.data || a.linear.x.rows != a.norm.out.rows || a.linear.x.row_stride != a.norm.out.row_stride) {
    return invalid_argument("norm_linear: what the products read is not what the norm writes");
  }
  return ok_status();
}

OpCost cost(const NormLinearArgs& a) {
  const OpCost linear = cost(a.linear), norm = cost(a.norm);
  return {linear.bytes + 2 * a.norm.x.cols, linear.flops + norm.flops};
}

}  // namespace dsv4
