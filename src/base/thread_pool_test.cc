#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace dsv4 {
namespace {

TEST(ThreadPool, every_index_once_for_any_size) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool({.num_threads = threads, .pin = false, .spin_iterations = 100});
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t count : {0, 1, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_LE(end - begin, grain);
          for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)]++;
        });
        for (auto& h : hits) ASSERT_EQ(h.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, wakes_sleeping_workers_many_times) {
  ThreadPool pool({.num_threads = 3, .pin = true, .spin_iterations = 1});
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 500; ++round) {
    if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.parallel_for(10, 1, [&](int64_t begin, int64_t) { sum += begin; });
  }
  EXPECT_EQ(sum.load(), 500 * 45);
}

// A pinned caller has one core; the next pool it makes must not crowd onto it.
TEST(ThreadPool, two_pinned_pools_of_one_thread_use_all_cores) {
  std::thread([] {  // pinned for the rest of its life
    ThreadPool first({.num_threads = 2, .pin = true}), second({.num_threads = 2, .pin = true}), unpinned({.num_threads = 2, .pin = false});
    const auto cores_of_worker = [](ThreadPool& pool) {
      cpu_set_t set;
      std::atomic<bool> seen{false};
      pool.parallel_for(2, 1, [&](int64_t, int64_t, int thread) {
        if (thread == 1) {
          pthread_getaffinity_np(pthread_self(), sizeof(set), &set);
          seen = true;
        }
        for (int i = 0; thread == 0 && !seen && i < 2000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
      EXPECT_TRUE(seen);
      return set;
    };
    cpu_set_t caller;
    const cpu_set_t one = cores_of_worker(first), two = cores_of_worker(second), any = cores_of_worker(unpinned);
    pthread_getaffinity_np(pthread_self(), sizeof(caller), &caller);
    EXPECT_EQ(CPU_COUNT(&caller), 1);
    EXPECT_TRUE(CPU_EQUAL(&one, &two));
    if (CPU_COUNT(&any) > 1) EXPECT_FALSE(CPU_EQUAL(&two, &caller));
  })
      .join();
}

// Scratch per thread index is safe only if no two bodies share an index at once.
TEST(ThreadPool, thread_index_is_in_range_and_never_shared) {
  ThreadPool pool({.num_threads = 4, .pin = false, .spin_iterations = 50});
  std::vector<std::atomic<int>> inside(4);
  for (int round = 0; round < 200; ++round) {
    pool.parallel_for(32, 1, [&](int64_t, int64_t, int thread) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, 4);
      EXPECT_EQ(inside[static_cast<size_t>(thread)]++, 0);
      inside[static_cast<size_t>(thread)]--;
    });
  }
}

}  // namespace
}  // namespace dsv4
