#include "backends/gpu/gpu_ops.h"

namespace dsv4::gpu {

const OpTable* strips_ops() {
  static const OpTable table = [] {
    OpTable t = portable_ops();
    t.hc_pre = hc_pre_strips;
    t.linear = linear_strips;
    t.grouped_linear = grouped_linear_strips;
    t.moe_experts = moe_experts_strips;
    t.sparse_attention = sparse_attention_strips;
    t.indexer_topk = indexer_topk_strips;
    return t;
  }();
  return &table;
}

const FusedOps& strips_fused_ops() {
  static const FusedOps table = {.hc_post_pre = hc_post_pre_strips,
                                 .hc_linear = hc_linear_strips,
                                 .moe_all = moe_all_strips,
                                 .norm_linear = norm_linear_strips,
                                 .choose_rotate = choose_rotate_strips};
  return table;
}

}  // namespace dsv4::gpu
