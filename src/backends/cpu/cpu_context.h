// What a step of the CPU backend runs on: the pool, and scratch memory that grows to the largest need and is then reused, so that
// operators allocate nothing in the steady state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "backends/cpu/kernels.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "ops/op.h"

namespace dsv4 {

// One growing block of memory, whose pages nobody shares and whose pieces are whole cache lines. An operator asks once for all it needs (reset), then takes
// pieces.
class CpuScratch {
 public:
  CpuScratch() = default;
  CpuScratch(const CpuScratch&) = delete;
  CpuScratch& operator=(const CpuScratch&) = delete;
  ~CpuScratch() { std::free(data_); }

  // Starts over with room for `bytes` (the sum of sizes rounded up by `padded`). What was taken before is lost. False: no memory.
  [[nodiscard]] bool reset(int64_t bytes) {
    used_ = 0;
    if (bytes <= capacity_) return true;
    std::free(data_);
    const int64_t wanted = (std::max(bytes, capacity_ + capacity_ / 2) + kAlignment - 1) / kAlignment * kAlignment;
    data_ = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, static_cast<size_t>(wanted)));
    capacity_ = data_ == nullptr ? 0 : wanted;
    return data_ != nullptr;
  }

  void start_over() { used_ = 0; }

  template <class T>
  static constexpr int64_t padded(int64_t count) {
    return (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  }

  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(data_ + used_);
    used_ += padded<T>(count);
    DSV4_CHECK(used_ <= capacity_, "an operator took more scratch than it asked for");
    return piece;
  }

  int64_t capacity_bytes() const { return capacity_; }

 private:
  static constexpr int64_t kAlignment = 4096;
  uint8_t* data_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
};

// Memory of each thread alone, which stays in its core's caches from operator to operator. Pieces of the common scratch memory do not: another
// thread wrote there last, and a line that comes from another core takes some 200 ns (two cores of a Zen 5 without a common L3).
class OwnScratch {
 public:
  // Room for `bytes` each. What was there before is lost. False: no memory.
  [[nodiscard]] bool reset(int threads, int64_t bytes) {
    if (static_cast<size_t>(threads) > of_.size()) of_ = std::vector<CpuScratch>(static_cast<size_t>(threads));
    return std::all_of(of_.begin(), of_.end(), [&](CpuScratch& s) { return s.reset(bytes); });
  }
  // The thread's memory, to be taken in pieces from its start.
  CpuScratch& operator[](int thread) {
    CpuScratch& own = of_[static_cast<size_t>(thread)];
    own.start_over();
    return own;
  }

 private:
  std::vector<CpuScratch> of_;
};

struct CpuContext : HostContext {
  const CpuKernels* kernels = nullptr;
  CpuScratch scratch;  // what all threads see
  OwnScratch own;
};

inline CpuContext& cpu_context(OpContext& context) { return static_cast<CpuContext&>(context); }

// Below this many elementary steps (a multiply-add, or an element moved) the work of an operator stays on the calling thread: waking
// and joining the pool costs half a microsecond to three, some ten thousand of them.
inline constexpr int64_t kParallelThreshold = 8192;

// body(begin, end, thread) over [0, count) in ranges of `grain`, on the pool when count * cost_per_item is worth it.
template <class Body>
void for_ranges(CpuContext& context, int64_t count, int64_t grain, int64_t cost_per_item, const Body& body) {
  if (count <= grain || count * cost_per_item < kParallelThreshold) {
    if (count > 0) body(int64_t{0}, count, 0);
    return;
  }
  context.pool->parallel_for(count, grain, body);
}

inline Status no_scratch(const char* op, int64_t bytes) {
  return resource_limit(std::string(op) + ": " + std::to_string(bytes) + " bytes of scratch memory are not to be had");
}

}  // namespace dsv4
