// What the GPU operators run on: a stream, the device's properties, and scratch memory that outlives the operator that asks for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/gpu/runtime/runtime.h"
#include "ops/fused_ops.h"
#include "ops/op.h"

namespace dsv4::gpu {

struct CombWork;  // sm90/products.h

struct GpuContext : OpContext {
  DeviceProperties properties;
  Stream stream = nullptr;
  bool overlap = false;              // neighbouring kernels may overlap (runtime/kernel.h)
  bool strips = false;               // weights lie in strips (weight_layout.h) and the sm90 kernels run
  int64_t launches = 0;              // kernels launched or recorded so far
  MemoryRange read_soon;             // for the next operator that has time for it
  const CombWork* beside = nullptr;  // for the next product of one row to do beside its own work, if it can: then it clears this
  // Device memory that outlives an operator's scratch.
  uint32_t* ticket = nullptr;  // a count of clusters that are ready; zero between kernels
  float* mixes = nullptr;      // what the launches of hc_linear hand on

  GpuContext() = default;
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;
  ~GpuContext() override;

  // Allocates that memory.
  Status open();

  // Device scratch of one operator, 256-byte aligned; the next operator may get the same bytes, as operators run in order. It grows on demand,
  // also while a step is recorded; old memory stays, because recorded steps hold its address.
  Result<uint8_t*> scratch(int64_t size_bytes);
  int64_t scratch_bytes() const;

 private:
  struct Block {
    void* data;
    int64_t size_bytes;
  };
  std::vector<Block> blocks_;  // ascending sizes; the last one is in use
};

// The hint, which is then taken.
inline MemoryRange take_read_soon(GpuContext& context) {
  const MemoryRange soon = context.read_soon;
  context.read_soon = {};
  return soon;
}

// Cuts aligned pieces out of one scratch() allocation: measure with data null, then again for real.
class ScratchPlan {
 public:
  explicit ScratchPlan(uint8_t* data = nullptr) : data_(data) {}
  template <class T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + at);
  }
  int64_t used_bytes() const { return used_; }

 private:
  uint8_t* data_;
  int64_t used_ = 0;
};

}  // namespace dsv4::gpu
