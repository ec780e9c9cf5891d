// Operators that do the work of several neighbours at once. A device that has some of them is a FusedDevice as well; where a slot is null the model runs
// the parts. Each is defined by its parts, run in order by the same device: the same bits.
#pragma once

#include "ops/hc_post.h"
#include "ops/hc_pre.h"
#include "ops/linear.h"
#include "ops/moe_experts.h"
#include "ops/rms_norm.h"
#include "tensor/weight.h"

namespace dsv4 {

// hc_post, then hc_pre of the next sub-block on the streams it has written. pre.h is post.h; pre.post and pre.comb may be post.post and post.comb.
struct HcPostPreArgs {
  HcPostArgs post;
  HcPreArgs pre;
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
};

Status check(const HcPostPreArgs& args);
OpCost cost(const HcPostPreArgs& args);
Status check(const MoeAllArgs& args);
OpCost cost(const MoeAllArgs& args);
Status check(const NormLinearArgs& args);
OpCost cost(const NormLinearArgs& args);

struct FusedOps {
  Status (*hc_post_pre)(OpContext&, const HcPostPreArgs&) = nullptr;
  Status (*moe_all)(OpContext&, const MoeAllArgs&) = nullptr;
  Status (*norm_linear)(OpContext&, const NormLinearArgs&) = nullptr;
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
