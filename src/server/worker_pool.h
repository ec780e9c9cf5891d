// Threads for blocking work: as many as there are jobs at once, up to a limit. Idle threads end after a while.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace dsv4 {

class WorkerPool {
 public:
  explicit WorkerPool(int max_threads) : max_threads_(max_threads) {}
  ~WorkerPool() { shutdown(); }

  void enqueue(std::function<void()> job);
  bool crowded() const;  // jobs wait for a thread
  void shutdown();       // runs what is queued, then joins

 private:
  void work(std::list<std::thread>::iterator self);

  const int max_threads_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::list<std::thread> threads_, ended_;
  int idle_ = 0;
  bool stop_ = false;
};

}  // namespace dsv4
