// The safetensors files of one model directory, with their index: every file is mapped, every header parsed and compared with
// model.safetensors.index.json in both directions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/tensor_entry.h"

namespace dsv4 {

struct ShardFile {
  std::string name;  // without directory
  MappedFile map;
};

struct ShardSet {
  std::vector<ShardFile> files;
  std::vector<TensorEntry> tensors;  // sorted by name; `data` points into the maps, with whatever alignment the file gives
  // Names whose absence is already told by a fault: they lie in a file that could not be read, or the index disagrees about them.
  std::set<std::string> accounted;
  bool complete = true;  // false: no list of tensors could be made at all, missing ones mean nothing
  std::string source;    // the file that lists the tensors: the index, or the single file
};

// Errors of the directory itself (absent, unreadable) and of its files are all added to `faults`.
ShardSet read_shards(const std::string& directory, FaultList* faults, FaultList* warnings);

}  // namespace dsv4
