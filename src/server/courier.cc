#include "server/courier.h"

#include <iterator>

namespace dsv4 {

void Courier::Round::run_locked() {
  try {
    over_ = !body_();
  } catch (...) {
    error_ = std::current_exception();
    over_ = true;
  }
  last_run_ = std::chrono::steady_clock::now();
  if (over_) ended_.notify_all();
}

void Courier::Round::run() {
  std::lock_guard lock(mutex_);
  if (!over_) run_locked();
}

void Courier::Round::attend(std::chrono::milliseconds pause) {
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (std::chrono::steady_clock::now() - last_run_ >= pause) run_locked();
    ended_.wait_until(lock, last_run_ + pause, [&] { return over_; });
  }
  if (error_) std::rethrow_exception(error_);
}

Courier::Courier() : thread_([this] { work(); }) {}

Courier::~Courier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Courier::post(std::vector<std::shared_ptr<Round>> rounds) {
  {
    std::lock_guard lock(mutex_);
    posted_.insert(posted_.end(), std::make_move_iterator(rounds.begin()), std::make_move_iterator(rounds.end()));
  }
  wake_.notify_one();
}

void Courier::work() {
  for (;;) {
    std::vector<std::shared_ptr<Round>> rounds;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || !posted_.empty(); });
      if (posted_.empty()) return;
      rounds.swap(posted_);
    }
    for (const auto& round : rounds) round->run();
  }
}

}  // namespace dsv4
