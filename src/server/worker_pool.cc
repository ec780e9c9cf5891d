#include "server/worker_pool.h"

#include <chrono>

namespace dsv4 {
namespace {

constexpr std::chrono::seconds kIdleThreadLife{20};

}  // namespace

void WorkerPool::enqueue(std::function<void()> job) {
  std::list<std::thread> ended;
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    ended.swap(ended_);
    if (static_cast<int>(jobs_.size()) > idle_ && static_cast<int>(threads_.size()) < max_threads_) {
      threads_.emplace_front();
      threads_.front() = std::thread([this, self = threads_.begin()] { work(self); });
    }
  }
  changed_.notify_one();
  for (std::thread& thread : ended) thread.join();
}

bool WorkerPool::crowded() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(jobs_.size()) > idle_ && static_cast<int>(threads_.size()) >= max_threads_;
}

void WorkerPool::work(std::list<std::thread>::iterator self) {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool woken = changed_.wait_for(lock, kIdleThreadLife, [&] { return !jobs_.empty() || stop_; });
    --idle_;
    if (!jobs_.empty()) {
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    } else if (stop_ || !woken) {
      ended_.splice(ended_.begin(), threads_, self);  // someone else joins it
      return;
    }
  }
}

void WorkerPool::shutdown() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  while (!threads_.empty() || !ended_.empty()) {
    std::list<std::thread> batch;
    batch.swap(ended_);
    lock.unlock();
    for (std::thread& thread : batch) thread.join();
    if (batch.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    lock.lock();
  }
}

}  // namespace dsv4
