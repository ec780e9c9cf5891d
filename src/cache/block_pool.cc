#include "cache/block_pool.h"

namespace dsv4 {

BlockPool::BlockPool(int32_t num_blocks) : references_(static_cast<size_t>(num_blocks), 0) {
  free_.reserve(references_.size());
  for (int32_t id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

Result<int32_t> BlockPool::take() {
  if (free_.empty()) return resource_limit("cache: all " + std::to_string(num_blocks()) + " blocks are in use");
  const int32_t id = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(id)] = 1;
  return id;
}

void BlockPool::add_reference(int32_t id) {
  DSV4_CHECK(references_[static_cast<size_t>(id)] > 0, "a free block has no owner to share it");
  ++references_[static_cast<size_t>(id)];
}

void BlockPool::release(int32_t id) {
  DSV4_CHECK(references_[static_cast<size_t>(id)] > 0, "a free block cannot be released");
  if (--references_[static_cast<size_t>(id)] == 0) free_.push_back(id);
}

}  // namespace dsv4
