// Device memory for weights. The runtime rounds every allocation to 2 MiB: 20,000 expert matrices of 4.25 MiB would lose 36 GB of a 143 GB
// card. So they are cut one after the other from large allocations, which are given back when their last piece is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "ops/device.h"

namespace dsv4::gpu {

class WeightSlabs {
 public:
  using Allocate = std::function<Result<DeviceBuffer>(int64_t size_bytes, const std::string& what)>;
  explicit WeightSlabs(Allocate allocate) : allocate_(std::move(allocate)) {}

  // `size_bytes` of memory, 256-byte aligned. What is larger than half a slab gets an allocation of its own.
  Result<DeviceBuffer> take(int64_t size_bytes, const std::string& what);

 private:
  Allocate allocate_;
  std::shared_ptr<DeviceBuffer> slab_;  // pieces hold it too
  int64_t used_bytes_ = 0;
};

}  // namespace dsv4::gpu
