#include "backends/gpu/weight_slabs.h"

#include <utility>

namespace dsv4::gpu {
namespace {

constexpr int64_t kSlabBytes = int64_t{256} << 20;
constexpr int64_t kAlignment = 256;

}  // namespace

Result<DeviceBuffer> WeightSlabs::take(int64_t size_bytes, const std::string& what) {
  const int64_t piece = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (piece > kSlabBytes / 2) return allocate_(size_bytes, what);
  if (slab_ == nullptr || used_bytes_ + piece > kSlabBytes) {
    DSV4_ASSIGN_OR_RETURN(DeviceBuffer fresh, allocate_(kSlabBytes, what));
    slab_ = std::make_shared<DeviceBuffer>(std::move(fresh));
    used_bytes_ = 0;
  }
  uint8_t* data = slab_->as<uint8_t>() + used_bytes_;
  used_bytes_ += piece;
  return DeviceBuffer(data, size_bytes, [slab = slab_](void*) {});
}

}  // namespace dsv4::gpu
