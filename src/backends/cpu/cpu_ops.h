// The operators of the CPU backend, one function per slot. They run the kernels the context carries (kernels.h).
#pragma once

#include "ops/op_table.h"

namespace dsv4 {

const OpTable& cpu_ops();

Status embed_cpu(OpContext& context, const EmbedArgs& args);
Status rope_table_cpu(OpContext& context, const RopeTableArgs& args);
Status hc_pre_cpu(OpContext& context, const HcPreArgs& args);
Status hc_post_cpu(OpContext& context, const HcPostArgs& args);
Status hc_head_cpu(OpContext& context, const HcHeadArgs& args);
Status rms_norm_cpu(OpContext& context, const RmsNormArgs& args);
Status linear_cpu(OpContext& context, const LinearArgs& args);
Status grouped_linear_cpu(OpContext& context, const GroupedLinearArgs& args);
Status query_norm_rope_cpu(OpContext& context, const QueryNormRopeArgs& args);
Status kv_insert_cpu(OpContext& context, const KvInsertArgs& args);
Status compressor_step_cpu(OpContext& context, const CompressorStepArgs& args);
Status indexer_query_cpu(OpContext& context, const IndexerQueryArgs& args);
Status indexer_topk_cpu(OpContext& context, const IndexerTopkArgs& args);
Status sparse_attention_cpu(OpContext& context, const SparseAttentionArgs& args);
Status moe_route_cpu(OpContext& context, const MoeRouteArgs& args);
Status swiglu_cpu(OpContext& context, const SwigluArgs& args);
Status moe_experts_cpu(OpContext& context, const MoeExpertsArgs& args);
Status argmax_cpu(OpContext& context, const ArgmaxArgs& args);

}  // namespace dsv4
