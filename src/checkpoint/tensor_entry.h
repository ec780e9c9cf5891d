// A named tensor of a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace dsv4 {

// One stored tensor. `data` stays valid while the Checkpoint lives; file-backed pages are read when first touched.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;  // aligned to the element size; null after a headers_only open
  int64_t size_bytes = 0;
  std::string file;  // shard's file name, or "synthetic"
};

// Binary search in a list sorted by name; null when absent.
const TensorEntry* find_tensor(const std::vector<TensorEntry>& sorted, std::string_view name);

}  // namespace dsv4
