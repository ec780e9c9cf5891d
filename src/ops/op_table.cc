#include "ops/op_table.h"

namespace dsv4 {

const OpTable& reference_ops() {
  static const OpTable table = {
      .embed = embed_reference,
      .rope_table = rope_table_reference,
      .hc_pre = hc_pre_reference,
      .hc_post = hc_post_reference,
      .hc_head = hc_head_reference,
      .rms_norm = rms_norm_reference,
      .linear = linear_reference,
      .grouped_linear = grouped_linear_reference,
      .query_norm_rope = query_norm_rope_reference,
      .kv_insert = kv_insert_reference,
      .compressor_step = compressor_step_reference,
      .indexer_query = indexer_query_reference,
      .indexer_topk = indexer_topk_reference,
      .sparse_attention = sparse_attention_reference,
      .moe_route = moe_route_reference,
      .swiglu = swiglu_reference,
      .moe_experts = moe_experts_reference,
      .argmax = argmax_reference,
      .sample = sample_reference,
  };
  return table;
}

OpTable with_products_of(OpTable table, const OpTable& plain) {
  table.linear = plain.linear;
  table.grouped_linear = plain.grouped_linear;
  table.moe_experts = plain.moe_experts;
  return table;
}

const char* first_missing_op(const OpTable& t) {
  if (!t.embed) return "embed";
  if (!t.rope_table) return "rope_table";
  if (!t.hc_pre) return "hc_pre";
  if (!t.hc_post) return "hc_post";
  if (!t.hc_head) return "hc_head";
  if (!t.rms_norm) return "rms_norm";
  if (!t.linear) return "linear";
  if (!t.grouped_linear) return "grouped_linear";
  if (!t.query_norm_rope) return "query_norm_rope";
  if (!t.kv_insert) return "kv_insert";
  if (!t.compressor_step) return "compressor_step";
  if (!t.indexer_query) return "indexer_query";
  if (!t.indexer_topk) return "indexer_topk";
  if (!t.sparse_attention) return "sparse_attention";
  if (!t.moe_route) return "moe_route";
  if (!t.swiglu) return "swiglu";
  if (!t.moe_experts) return "moe_experts";
  if (!t.argmax) return "argmax";
  if (!t.sample) return "sample";
  return nullptr;
}

}  // namespace dsv4
