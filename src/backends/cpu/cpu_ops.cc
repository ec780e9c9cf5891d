#include "backends/cpu/cpu_ops.h"

namespace dsv4 {

const OpTable& cpu_ops() {
  static const OpTable table = {
      .embed = embed_cpu,
      .rope_table = rope_table_cpu,
      .hc_pre = hc_pre_cpu,
      .hc_post = hc_post_cpu,
      .hc_head = hc_head_cpu,
      .rms_norm = rms_norm_cpu,
      .linear = linear_cpu,
      .grouped_linear = grouped_linear_cpu,
      .query_norm_rope = query_norm_rope_cpu,
      .kv_insert = kv_insert_cpu,
      .compressor_step = compressor_step_cpu,
      .indexer_query = indexer_query_cpu,
      .indexer_topk = indexer_topk_cpu,
      .sparse_attention = sparse_attention_cpu,
      .moe_route = moe_route_cpu,
      .swiglu = swiglu_cpu,
      .moe_experts = moe_experts_cpu,
      .argmax = argmax_cpu,
      .sample = sample_reference,  // integers: nothing to gain by other sums; rows are spread over the pool
  };
  return table;
}

}  // namespace dsv4
