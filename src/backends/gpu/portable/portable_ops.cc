#include "backends/gpu/gpu_ops.h"

namespace dsv4::gpu {

const OpTable& portable_ops() {
  static const OpTable table = {
      .embed = embed_portable,
      .rope_table = rope_table_portable,
      .hc_pre = hc_pre_portable,
      .hc_post = hc_post_portable,
      .hc_head = hc_head_portable,
      .rms_norm = rms_norm_portable,
      .linear = linear_portable,
      .grouped_linear = grouped_linear_portable,
      .query_norm_rope = query_norm_rope_portable,
      .kv_insert = kv_insert_portable,
      .compressor_step = compressor_step_portable,
      .indexer_query = indexer_query_portable,
      .indexer_topk = indexer_topk_portable,
      .sparse_attention = sparse_attention_portable,
      .moe_route = moe_route_portable,
      .swiglu = swiglu_portable,
      .moe_experts = moe_experts_portable,
      .argmax = argmax_portable,
      .sample = sample_portable,
  };
  return table;
}

}  // namespace dsv4::gpu
