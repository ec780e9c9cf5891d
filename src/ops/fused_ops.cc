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

Status check(const HcLinearArgs& a) {
  const HcPostArgs& post = a.join.post;
  const HcPreArgs& pre = a.join.pre;
  DSV4_RETURN_IF_ERROR(check(post));
  DSV4_RETURN_IF_ERROR(check(pre));
  DSV4_RETURN_IF_ERROR(check(a.linear));
  if (pre.h.data == post.h.data || pre.h.rows != post.h.rows || pre.h.cols != post.h.cols) {
    return invalid_argument("hc_linear: the new streams must lie beside the old ones and be as large");
  }
  if (a.linear.x.data != pre.x.data || a.linear.x.rows != pre.x.rows || a.linear.x.row_stride != pre.x.row_stride) {
    return invalid_argument("hc_linear: what the products read is not what hc_pre writes");
  }
  return ok_status();
}

OpCost cost(const HcLinearArgs& a) {
  const OpCost post = cost(a.join.post), pre = cost(a.join.pre), linear = cost(a.linear);
  return {post.bytes + pre.bytes - 4 * a.join.pre.h.rows * a.join.pre.h.cols + linear.bytes, post.flops + pre.flops + linear.flops};
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
  if (a.positions != nullptr && (a.ratio < 1 || a.all_of < 0)) return invalid_argument("norm_linear: a ratio below 1, or less than no rows");
  return ok_status();
}

OpCost cost(const NormLinearArgs& a) {
  const OpCost linear = cost(a.linear), norm = cost(a.norm);
  return {linear.bytes + 2 * a.norm.x.cols, linear.flops + norm.flops};
}

Status check(const ChooseRotateArgs& a) {
  DSV4_RETURN_IF_ERROR(check(a.query));
  DSV4_RETURN_IF_ERROR(check(a.choose));
  DSV4_RETURN_IF_ERROR(check(a.rotate));
  if (a.choose.q.data != a.query.q.data || a.choose.q.rows != a.query.q.rows || a.choose.q.row_stride != a.query.q.row_stride ||
      a.choose.heads != a.query.heads || a.rotate.q.rows != a.query.q.rows) {
    return invalid_argument("choose_rotate: what chooses are not the queries made, or not of the same tokens");
  }
  return ok_status();
}

OpCost cost(const ChooseRotateArgs& a) {
  const OpCost query = cost(a.query), choose = cost(a.choose), rotate = cost(a.rotate);
  return {query.bytes + choose.bytes + rotate.bytes, query.flops + choose.flops + rotate.flops};
}

}  // namespace dsv4
