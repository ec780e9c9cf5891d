// One persistent pool of worker threads. Work is cut into fixed index ranges; which thread runs a range never changes what
// is computed, so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace dsv4 {

class ThreadPool {
 public:
  struct Options {
    int num_threads = 0;         // 0 = one per available core; the caller counts as one of them
    bool pin = false;            // bind thread i (0: who calls parallel_for) to the i-th of the process's cores
    int spin_iterations = 4000;  // polls (10 to 50 ns each) before a waiting worker sleeps
  };

  explicit ThreadPool(const Options& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(begin, end) or body(begin, end, thread) for disjoint ranges that cover [0, count), each at most `grain` long; returns when
  // all are done. Thread i begins with the i-th part of them, so that jobs over the same rows or the same weights meet what this core
  // had before; threads that are done take ranges from the others. `thread` is in [0, num_threads()), 0 is the caller, and no two bodies
  // run at once with the same one: an index for scratch memory, never for results. body must not call parallel_for of the same
  // pool and must not throw. One caller at a time. Allocates nothing; a worker that sleeps or is late is not waited for.
  template <class Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    run(count, grain, &body, [](const void* b, int64_t begin, int64_t end, int thread) {
      const Body& f = *static_cast<const Body*>(b);
      if constexpr (std::is_invocable_v<const Body&, int64_t, int64_t, int>) {
        f(begin, end, thread);
      } else {
        f(begin, end);
      }
    });
  }

 private:
  using Range = void (*)(const void* body, int64_t begin, int64_t end, int thread);
  void run(int64_t count, int64_t grain, const void* body, Range call);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4
