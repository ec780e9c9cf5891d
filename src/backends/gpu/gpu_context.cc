#include "backends/gpu/gpu_context.h"

#include <algorithm>

namespace dsv4::gpu {

GpuContext::~GpuContext() {
  for (const Block& b : blocks_) free_device(b.data);
  if (ticket != nullptr) free_device(ticket);
}

Status GpuContext::open() {
  constexpr int64_t kTicketBytes = 256, kMixesBytes = 512;
  DSV4_ASSIGN_OR_RETURN(void* memory, allocate_device(kTicketBytes + kMixesBytes));
  ticket = static_cast<uint32_t*>(memory);
  mixes = reinterpret_cast<float*>(static_cast<uint8_t*>(memory) + kTicketBytes);
  return zero_async(ticket, kTicketBytes, stream);
}

Result<uint8_t*> GpuContext::scratch(int64_t size_bytes) {
  constexpr int64_t kFirstBytes = int64_t{32} << 20;
  if (blocks_.empty() || blocks_.back().size_bytes < size_bytes) {
    // Doubling bounds what is left behind by the size in use.
    const int64_t grown = std::max({kFirstBytes, size_bytes, blocks_.empty() ? 0 : 2 * blocks_.back().size_bytes});
    auto memory = allocate_device(grown);
    if (!memory.ok()) return memory.status().with_context("operator scratch of " + std::to_string(grown) + " bytes");
    blocks_.push_back({memory.value(), grown});
  }
  return static_cast<uint8_t*>(blocks_.back().data);
}

int64_t GpuContext::scratch_bytes() const {
  int64_t sum = 0;
  for (const Block& b : blocks_) sum += b.size_bytes;
  return sum;
}

}  // namespace dsv4::gpu
