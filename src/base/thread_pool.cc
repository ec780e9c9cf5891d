#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"

namespace dsv4 {
namespace {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Binds the calling thread to the n-th core of `all`; a refusal leaves it unpinned.
void pin_to_nth_core(const cpu_set_t& all, int n) {
  cpu_set_t one;
  CPU_ZERO(&one);
  if (CPU_COUNT(&all) == 0) return;
  n %= CPU_COUNT(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &all) && n-- == 0) {
      CPU_SET(core, &one);
      pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
      return;
    }
  }
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadPool::Impl {
  Options options;
  cpu_set_t mask{};  // the process's cores before anything was pinned
  std::vector<std::thread> workers;

  // The job in hand. Written by the caller before `generation` is raised (release), read by workers after they see it.
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0;
  int64_t grain = 1;
  std::atomic<int64_t> next{0};
  std::atomic<int> busy{0};  // workers that have not finished the current generation
  std::atomic<uint64_t> generation{0};
  std::atomic<bool> stop{false};

  std::mutex mutex;
  std::condition_variable wake;  // workers sleep here after spinning

  void run_ranges() {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      (*body)(begin, std::min(begin + grain, count));
    }
  }

  void worker(int index) {
    if (options.pin) pin_to_nth_core(mask, index);
    uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (generation.load(std::memory_order_acquire) == seen && !stop.load(std::memory_order_relaxed)) {
        if (++spins < options.spin_iterations) {
          cpu_relax();
        } else {
          std::unique_lock lock(mutex);
          wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen || stop.load(); });
        }
      }
      if (stop.load()) return;
      seen = generation.load(std::memory_order_acquire);
      run_ranges();
      busy.fetch_sub(1, std::memory_order_release);
    }
  }
};

ThreadPool::ThreadPool(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  const int total = options.num_threads > 0 ? options.num_threads : available_cores();
  sched_getaffinity(0, sizeof(impl_->mask), &impl_->mask);
  if (options.pin) pin_to_nth_core(impl_->mask, 0);
  for (int i = 1; i < total; ++i) impl_->workers.emplace_back([this, i] { impl_->worker(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop.store(true);
  }
  impl_->wake.notify_all();
  for (std::thread& t : impl_->workers) t.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  DSV4_CHECK(grain > 0, "parallel_for needs a positive grain");
  if (count <= 0) return;
  Impl& p = *impl_;
  if (p.workers.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(begin + grain, count));
    return;
  }
  p.body = &body;
  p.count = count;
  p.grain = grain;
  p.next.store(0, std::memory_order_relaxed);
  p.busy.store(static_cast<int>(p.workers.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(p.mutex);  // pairs with the sleepers' predicate: no wake-up is lost
    p.generation.fetch_add(1, std::memory_order_release);
  }
  p.wake.notify_all();
  p.run_ranges();
  for (int spins = 0; p.busy.load(std::memory_order_acquire) != 0;) {
    if (++spins < p.options.spin_iterations) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace dsv4
