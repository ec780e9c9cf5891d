// The slots of the GPU's operator table. NAME_portable runs on any card; NAME_strips wants Hopper, and weights where
// place_weight put them; what it cannot take goes to NAME_portable, which reads both layouts.
#pragma once

#include "backends/gpu/gpu_context.h"
#include "ops/fused_ops.h"
#include "ops/op_table.h"

namespace dsv4::gpu {

inline GpuContext& gpu_context(OpContext& context) { return static_cast<GpuContext&>(context); }

Status argmax_portable(OpContext& context, const ArgmaxArgs& args);
Status compressor_step_portable(OpContext& context, const CompressorStepArgs& args);
Status embed_portable(OpContext& context, const EmbedArgs& args);
Status grouped_linear_portable(OpContext& context, const GroupedLinearArgs& args);
Status hc_head_portable(OpContext& context, const HcHeadArgs& args);
Status hc_post_portable(OpContext& context, const HcPostArgs& args);
Status hc_pre_portable(OpContext& context, const HcPreArgs& args);
Status indexer_query_portable(OpContext& context, const IndexerQueryArgs& args);
Status indexer_topk_portable(OpContext& context, const IndexerTopkArgs& args);
Status kv_insert_portable(OpContext& context, const KvInsertArgs& args);
Status linear_portable(OpContext& context, const LinearArgs& args);
Status moe_experts_portable(OpContext& context, const MoeExpertsArgs& args);
Status moe_route_portable(OpContext& context, const MoeRouteArgs& args);
Status query_norm_rope_portable(OpContext& context, const QueryNormRopeArgs& args);
Status rms_norm_portable(OpContext& context, const RmsNormArgs& args);
Status rope_table_portable(OpContext& context, const RopeTableArgs& args);
Status sample_portable(OpContext& context, const SampleArgs& args);
Status sparse_attention_portable(OpContext& context, const SparseAttentionArgs& args);
Status swiglu_portable(OpContext& context, const SwigluArgs& args);

Status grouped_linear_strips(OpContext& context, const GroupedLinearArgs& args);
Status hc_pre_strips(OpContext& context, const HcPreArgs& args);
Status indexer_topk_strips(OpContext& context, const IndexerTopkArgs& args);
Status linear_strips(OpContext& context, const LinearArgs& args);
Status moe_experts_strips(OpContext& context, const MoeExpertsArgs& args);
Status sparse_attention_strips(OpContext& context, const SparseAttentionArgs& args);

Status choose_rotate_strips(OpContext& context, const ChooseRotateArgs& args);
Status hc_linear_strips(OpContext& context, const HcLinearArgs& args);
Status hc_post_pre_strips(OpContext& context, const HcPostPreArgs& args);
Status moe_all_strips(OpContext& context, const MoeAllArgs& args);
Status norm_linear_strips(OpContext& context, const NormLinearArgs& args);

const OpTable& portable_ops();
// The table for weights in strips; null when this build has no sm90 kernels.
const OpTable* strips_ops();
// What that table's device has of fused operators.
const FusedOps& strips_fused_ops();

}  // namespace dsv4::gpu
