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

// The process's cores, looked up once: a thread that is pinned has one core left, and would hand it to all workers of the next pool it makes.
const cpu_set_t& process_cores() {
  static const cpu_set_t cores = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    (void)sched_getaffinity(0, sizeof(set), &set);
    return set;
  }();
  return cores;
}

int available_cores() { return std::max(1, CPU_COUNT(&process_cores())); }

// Binds the calling thread to the n-th core of the process; a refusal leaves it as it was.
void pin_to_nth_core(int n) {
  const cpu_set_t& all = process_cores();
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

// The thread that hands out jobs takes part in them, so it is pinned too, when it comes: who made the pool may be another, whose later threads
// (those of a server) would inherit the core.
void pin_caller() {
  static thread_local bool pinned = false;
  if (pinned) return;
  pinned = true;
  pin_to_nth_core(0);
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadPool::Impl {
  Options options;
  std::vector<std::thread> workers;

  // The job in hand: written by the caller while `open` is false and no worker is active; read by workers that saw `open` true.
  const void* body = nullptr;
  Range call = nullptr;
  int64_t count = 0;
  int64_t grain = 1;

  // Each thread's part of the job: ranges [next, end). Who is done with his own takes from the others'.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Share> shares;

  alignas(64) std::atomic<uint64_t> generation{0};  // raised once per job; what idle workers poll
  std::atomic<bool> stop{false};
  // A worker raises `active` BEFORE it looks at `open`, the caller lowers `open` BEFORE it looks at `active` (all seq_cst): either the
  // worker sees the job closed, or the caller sees the worker. So a job ends without waiting for workers that never came.
  alignas(64) std::atomic<bool> open{false};
  std::atomic<int> active{0};

  std::mutex mutex;
  std::condition_variable wake;  // workers sleep here after spinning
  std::atomic<int> sleepers{0};

  void cut_shares() {
    const int64_t threads = static_cast<int64_t>(shares.size()), ranges = (count + grain - 1) / grain;
    for (int64_t i = 0; i < threads; ++i) {
      Share& s = shares[static_cast<size_t>(i)];
      s.next.store(ranges * i / threads, std::memory_order_relaxed);
      s.end = ranges * (i + 1) / threads;
    }
  }

  void run_ranges(int thread) {
    const size_t threads = shares.size();
    for (size_t i = 0; i < threads; ++i) {
      Share& s = shares[(static_cast<size_t>(thread) + i) % threads];
      // Looked at before it is raised: a share that is done stays where it lies.
      while (s.next.load(std::memory_order_relaxed) < s.end) {
        const int64_t range = s.next.fetch_add(1, std::memory_order_relaxed);
        if (range >= s.end) break;
        call(body, range * grain, std::min((range + 1) * grain, count), thread);
      }
    }
  }

  void wait_for_job(uint64_t seen) {
    for (int spins = 0; spins < options.spin_iterations; ++spins) {
      if (generation.load(std::memory_order_acquire) != seen || stop.load(std::memory_order_relaxed)) return;
      cpu_relax();
    }
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, [&] { return generation.load() != seen || stop.load(); });
    sleepers.fetch_sub(1);
  }

  void worker(int index) {
    if (options.pin) {
      pin_to_nth_core(index);
    } else {  // not where the thread that made the pool may be pinned
      pthread_setaffinity_np(pthread_self(), sizeof(cpu_set_t), &process_cores());
    }
    uint64_t seen = 0;
    for (;;) {
      wait_for_job(seen);
      if (stop.load()) return;
      seen = generation.load(std::memory_order_acquire);
      active.fetch_add(1);
      if (open.load()) run_ranges(index);
      active.fetch_sub(1, std::memory_order_release);
    }
  }
};

ThreadPool::ThreadPool(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  const int total = options.num_threads > 0 ? options.num_threads : available_cores();
  impl_->shares = std::vector<Impl::Share>(static_cast<size_t>(total));
  (void)process_cores();
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

void ThreadPool::run(int64_t count, int64_t grain, const void* body, Range call) {
  DSV4_CHECK(grain > 0, "parallel_for needs a positive grain");
  if (count <= 0) return;
  Impl& p = *impl_;
  if (p.options.pin) pin_caller();
  if (p.workers.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) call(body, begin, std::min(begin + grain, count), 0);
    return;
  }
  p.body = body;
  p.call = call;
  p.count = count;
  p.grain = grain;
  p.cut_shares();
  p.open.store(true);
  p.generation.fetch_add(1);
  if (p.sleepers.load() > 0) {
    { std::lock_guard lock(p.mutex); }  // a worker between its last look and its sleep holds the mutex: no wake-up is lost
    p.wake.notify_all();
  }
  p.run_ranges(0);
  p.open.store(false);
  for (int spins = 0; p.active.load() != 0;) {
    if (++spins < p.options.spin_iterations) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace dsv4
