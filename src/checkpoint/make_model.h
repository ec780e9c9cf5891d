// Writes a synthetic model to disk in the published layout.
#pragma once

#include <cstdint>
#include <string>

#include "base/progress.h"
#include "base/status.h"

namespace dsv4 {

struct MakeModelOptions {
  std::string model = {};   // "synthetic:flash", "synthetic:k160", "synthetic:tiny"
  int64_t num_layers = -1;  // the first layers only; -1 = all
  uint64_t seed = 1;
  int64_t shard_bytes = 4'000'000'000;  // tensor bytes a shard may hold; one larger tensor fills a shard alone
  std::string text_files_from = {};     // copy tokenizer.json and encoding/ of this model directory; empty = none
  ProgressSink progress = nullptr;      // task "write", item the shard, unit "bytes"
};

// Everything is written to a temporary sibling, then renamed: `directory` appears complete or not at all. It must not exist, or be
// empty. Opening it gives the same bytes as opening options.model in memory. Errors: an existing directory, too little room on
// the disk, a tokenizer for another vocabulary, I/O.
Status make_model(const MakeModelOptions& options, const std::string& directory);

}  // namespace dsv4
