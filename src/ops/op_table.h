// The operators of a backend. A null slot means "this backend does not have it"; what happens then is decided when a model is
// loaded (device.h), never inside a step. The model is written once against this table.
#pragma once

#include "ops/argmax.h"
#include "ops/compressor_step.h"
#include "ops/embed.h"
#include "ops/grouped_linear.h"
#include "ops/hc_head.h"
#include "ops/hc_post.h"
#include "ops/hc_pre.h"
#include "ops/indexer_query.h"
#include "ops/indexer_topk.h"
#include "ops/kv_insert.h"
#include "ops/linear.h"
#include "ops/moe_experts.h"
#include "ops/moe_route.h"
#include "ops/query_norm_rope.h"
#include "ops/rms_norm.h"
#include "ops/rope_table.h"
#include "ops/sample.h"
#include "ops/sparse_attention.h"
#include "ops/swiglu.h"

namespace dsv4 {

template <class Args>
using OpSlot = Status (*)(OpContext&, const Args&);

struct OpTable {
  OpSlot<EmbedArgs> embed = nullptr;
  OpSlot<RopeTableArgs> rope_table = nullptr;
  OpSlot<HcPreArgs> hc_pre = nullptr;
  OpSlot<HcPostArgs> hc_post = nullptr;
  OpSlot<HcHeadArgs> hc_head = nullptr;
  OpSlot<RmsNormArgs> rms_norm = nullptr;
  OpSlot<LinearArgs> linear = nullptr;
  OpSlot<GroupedLinearArgs> grouped_linear = nullptr;
  OpSlot<QueryNormRopeArgs> query_norm_rope = nullptr;
  OpSlot<KvInsertArgs> kv_insert = nullptr;
  OpSlot<CompressorStepArgs> compressor_step = nullptr;
  OpSlot<IndexerQueryArgs> indexer_query = nullptr;
  OpSlot<IndexerTopkArgs> indexer_topk = nullptr;
  OpSlot<SparseAttentionArgs> sparse_attention = nullptr;
  OpSlot<MoeRouteArgs> moe_route = nullptr;
  OpSlot<SwigluArgs> swiglu = nullptr;
  OpSlot<MoeExpertsArgs> moe_experts = nullptr;
  OpSlot<ArgmaxArgs> argmax = nullptr;
  OpSlot<SampleArgs> sample = nullptr;
};

// Every slot filled by the reference.
const OpTable& reference_ops();

// `table` with the products of `plain`: linear, grouped_linear, moe_experts.
OpTable with_products_of(OpTable table, const OpTable& plain);

// Name of the first empty slot a model needs, or null.
const char* first_missing_op(const OpTable& table);

}  // namespace dsv4
