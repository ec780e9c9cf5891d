// Ids of the blocks of one arena: a free list with reference counts (blocks of a shared prefix have several owners).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace dsv4 {

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

  // A block with one reference: the one freed last (its memory is warm). kResourceLimit when none is free.
  Result<int32_t> take();
  void add_reference(int32_t id);
  // Frees the block when its last reference goes.
  void release(int32_t id);
  int32_t references(int32_t id) const { return references_[static_cast<size_t>(id)]; }

 private:
  std::vector<int32_t> free_;
  std::vector<int32_t> references_;
};

}  // namespace dsv4
