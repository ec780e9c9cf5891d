// Operators that do the work of several neighbours at once. A device that has some of them is a FusedDevice as well; where a slot is null the model runs
// the parts. Each is defined by its parts, run in order by the same device: the same bits.
#pragma once

#include "ops/hc_post.h"
#include "ops/hc_pre.h"
#include "ops/indexer_query.h"
#include "ops/indexer_topk.h"
#include "ops/linear.h"
#include "ops/moe_experts.h"
#include "ops/query_norm_rope.h"
#include "ops/rms_norm.h"
#include "tensor/weight.h"

namespace dsv4 {

// hc_post, then hc_pre of the next sub-block on the streams it has written. pre.h is post.h; pre.post and pre.comb may be post.post and post.comb.
struct HcPostPreArgs {
  HcPostArgs post;
  HcPreArgs pre;
};

// hc_post, hc_pre, and products of its result. Unlike there join.pre.h does not overlap join.post.h: the streams behind hc_post are written to it, and what
// join.post.h holds afterwards is not defined. linear.x is join.pre.x.
struct HcLinearArgs {
  HcPostPreArgs join;
  LinearArgs linear;
};

// The shared expert and the routed ones: y = w2 swiglu(w1 x, w3 x), then moe_experts onto it. Roundings and limit of the shared expert are those of the
// routed ones.
struct MoeAllArgs {
  MoeExpertsArgs routed;
  WeightView w1, w3, w2;   // the shared expert's: [F', D], [F', D], [D, F']
  Matrix<float> gate, up;  // [T, F'], work areas
};

// rms_norm, then products of its result: norm.out is linear.x. What norm.out holds afterwards is not defined; it may be norm.x.
struct NormLinearArgs {
  RmsNormArgs norm;
  LinearArgs linear;
  // The last of several jobs makes what chooses among compressed rows. It may be left out where every token sees at most `all_of` of them, for then there
  // is nothing to choose; what it would have written is not defined then. Null: it is always wanted.
  const int32_t* positions = nullptr;
  int32_t ratio = 4;
  int64_t all_of = 0;
};

// What lies between the queries' products and the attention of a layer that chooses its keys: indexer_query, indexer_topk on its result, and
// query_norm_rope. What query.q holds afterwards is not defined.
struct ChooseRotateArgs {
  IndexerQueryArgs query;
  IndexerTopkArgs choose;
  QueryNormRopeArgs rotate;
};

Status check(const HcPostPreArgs& args);
OpCost cost(const HcPostPreArgs& args);
Status check(const HcLinearArgs& args);
OpCost cost(const HcLinearArgs& args);
Status check(const MoeAllArgs& args);
OpCost cost(const MoeAllArgs& args);
Status check(const NormLinearArgs& args);
OpCost cost(const NormLinearArgs& args);
Status check(const ChooseRotateArgs& args);
OpCost cost(const ChooseRotateArgs& args);

struct FusedOps {
  Status (*hc_post_pre)(OpContext&, const HcPostPreArgs&) = nullptr;
  Status (*hc_linear)(OpContext&, const HcLinearArgs&) = nullptr;
  Status (*moe_all)(OpContext&, const MoeAllArgs&) = nullptr;
  Status (*norm_linear)(OpContext&, const NormLinearArgs&) = nullptr;
  Status (*choose_rotate)(OpContext&, const ChooseRotateArgs&) = nullptr;
};

// Memory that nothing writes (weights).
struct MemoryRange {
  const void* data = nullptr;
  int64_t size_bytes = 0;
};

class FusedDevice {
 public:
  virtual ~FusedDevice() = default;
  virtual const FusedOps& fused() const = 0;
  // A hint for the operator that comes next: the one right behind it reads this.
  virtual void read_soon(const MemoryRange& range) = 0;
};

// What `device` has; all slots null where it has none.
template <class Device>
FusedOps fused_ops(const Device& device) {
  const auto* fused = dynamic_cast<const FusedDevice*>(&device);
  return fused == nullptr ? FusedOps{} : fused->fused();
}

template <class Device>
void read_soon(Device& device, const MemoryRange& range) {
  if (auto* fused = dynamic_cast<FusedDevice*>(&device)) fused->read_soon(range);
}

}  // namespace dsv4
