// One persistent pool of worker threads. Work is cut into fixed index ranges; which thread runs a range never changes what
// is computed, so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace dsv4 {

class ThreadPool {
 public:
  struct Options {
    int num_threads = 0;         // 0 = one per available core; the caller counts as one of them
    bool pin = false;            // bind worker i to the i-th core of the process's affinity mask
    int spin_iterations = 4000;  // polls (~10 ns each) before a waiting worker sleeps
  };

  explicit ThreadPool(const Options& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(begin, end) for disjoint ranges that cover [0, count), each at most `grain` long, taken by whichever thread is
  // free; returns when all are done. body must not call parallel_for of the same pool and must not throw. One caller at a time.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4
