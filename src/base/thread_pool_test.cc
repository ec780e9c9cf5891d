#include "base/thread_pool.h"

#include <gtest/gtest.h>

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
