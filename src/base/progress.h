// Progress of long work (loading, generating weights, benchmarks), as data: the library reports, the application draws.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace dsv4 {

struct ProgressUpdate {
  std::string_view task;  // what is being done, e.g. "load"
  std::string_view item;  // the part in hand, e.g. a shard's file name
  uint64_t done = 0;      // in `unit`
  uint64_t total = 0;     // 0 = unknown
  std::string_view unit;  // "bytes", "tensors", "tokens"
};

// Called from the working thread, at most a few times a second per task and once with done == total. May be empty.
using ProgressSink = std::function<void(const ProgressUpdate&)>;

}  // namespace dsv4
