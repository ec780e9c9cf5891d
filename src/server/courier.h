// One thread that carries what a step of the engine produced to the streams it belongs to. A step of many streams so wakes one thread, not one
// for each stream: where the cores compute, every thread that wakes interrupts them (16 streams on 2 cores: telling their threads took the
// engine's own 0.54 ms a step, telling the courier takes it 0.14).
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace dsv4 {

class Courier {
 public:
  // What there is to do for one stream whenever something came for it: on the courier's thread or on its owner's, never on both at once.
  class Round {
   public:
    explicit Round(std::function<bool()> body) : body_(std::move(body)) {}  // false: the round is over, it is not called again

    // The owner's: runs the body at once and whenever it was not run for `pause`, until it is over. Rethrows what the body threw, on either
    // thread.
    void attend(std::chrono::milliseconds pause);

    void run();

   private:
    void run_locked();

    std::mutex mutex_;
    std::condition_variable ended_;
    std::function<bool()> body_;
    std::chrono::steady_clock::time_point last_run_;
    std::exception_ptr error_;
    bool over_ = false;
  };

  Courier();
  ~Courier();  // after the rounds that were posted
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // Runs them once each, in this order.
  void post(std::vector<std::shared_ptr<Round>> rounds);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Round>> posted_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace dsv4
