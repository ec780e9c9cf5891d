// The engine's thread, and the way to it from any other: a mailbox of requests and cancellations in, a queue of tokens per request
// out. The engine itself knows no threads; everything that touches it happens here, between two of its steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "server/courier.h"

namespace dsv4 {

// What the loop drives: an Engine, or a test's own.
class StepEngine {
 public:
  virtual ~StepEngine() = default;
  virtual Result<uint64_t> submit(Request request, OutputSink sink) = 0;
  virtual void cancel(uint64_t request_id) = 0;
  virtual bool idle() const = 0;
  virtual Status step() = 0;
  virtual EngineStats stats() const = 0;
};

std::unique_ptr<StepEngine> make_step_engine(Engine& engine);  // refers to `engine`

// One request on its way through the engine. HTTP threads hold it; outputs come in from the engine's thread.
class Ticket {
 public:
  using Clock = std::chrono::steady_clock;

  // Waits for the engine's answer to the submission: its error, or ok once the request is queued. Empty if none came within `limit`.
  std::optional<Status> wait_accepted(std::chrono::milliseconds limit);

  // What came since the last call; waits at most `wait` for something to come. The last output of all has a finish reason.
  std::vector<TokenOutput> take(std::chrono::milliseconds wait);

  // The same for requests that were submitted together.
  struct Arrival {
    size_t index = 0;  // in the group
    TokenOutput output;
  };
  static std::vector<Arrival> take(std::span<const std::shared_ptr<Ticket>> group, std::chrono::milliseconds wait);

  // From now on the loop's courier runs the round when something came for the group, and nobody who waits in take() is woken; null: as before.
  static void carry(std::span<const std::shared_ptr<Ticket>> group, std::shared_ptr<Courier::Round> round);

  bool timed_out() const;  // with the end: the loop cancelled it at its deadline

 private:
  friend class EngineLoop;

  // Shared by a group, so that one thread can wait for all of it.
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<Courier::Round> round;
    bool has_news = false;  // the loop's own: in its list
  };
  std::shared_ptr<Signal> signal_;
  // Guarded by signal_->mutex.
  bool answered_ = false;
  Status answer_;
  std::vector<TokenOutput> outputs_;
  bool timed_out_ = false;

  // The loop's own.
  uint64_t engine_id_ = 0;
  bool submitted_ = false, ended_ = false;
  int64_t prompt_tokens_ = 0, generated_tokens_ = 0;
  Clock::time_point created_, last_token_, deadline_;
};

// Told about requests as they pass; called from the engine's thread (on_rejected: from any).
class LoopListener {
 public:
  virtual ~LoopListener() = default;
  virtual void on_rejected() {}
  virtual void on_token(double seconds_since_previous, bool first) { (void)seconds_since_previous, (void)first; }
  struct Ended {
    FinishReason finish = FinishReason::kNone;
    bool timed_out = false;
    int64_t prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0;
    double seconds = 0;
  };
  virtual void on_end(const Ended& ended) { (void)ended; }
  virtual void on_step(double seconds) { (void)seconds; }
};

enum class LoopState : uint8_t { kStarting, kReady, kFailed, kDraining, kStopped };
const char* loop_state_name(LoopState state);  // "starting", "ready", "failed", "draining", "stopped"

struct LoopOptions {
  int64_t max_outstanding = 64;  // requests running and waiting, all together; one more is refused
  double request_seconds = 600;  // a request that takes longer, waiting included, is cancelled; 0 = no limit
  double recover_seconds = 1;    // after a device fault the probe runs again, first after this pause, then after twice as long, ...
  // Run on the engine's thread before requests are taken, and after a fault. Ok = the engine generates. Empty = no probe.
  std::function<Status(StepEngine&)> probe = nullptr;
};

class EngineLoop {
 public:
  // Starts the thread. `engine` and `listener` (may be null) must outlive the loop.
  EngineLoop(StepEngine& engine, LoopOptions options, LoopListener* listener = nullptr);
  ~EngineLoop();  // stop()
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Queues requests, all or none. Errors: kResourceLimit when there is no place in the queue; kDevice while the engine is not ready;
  // kCancelled while draining. What the engine itself says of a request comes from wait_accepted().
  Result<std::vector<std::shared_ptr<Ticket>>> submit(std::vector<Request> requests);

  // Ends a request at the next step; its ticket sees kCancelled unless it ended before.
  void cancel(const std::shared_ptr<Ticket>& ticket);

  // Takes no new requests, lets those in flight end for at most `grace_seconds`, cancels the rest, and ends the thread.
  void stop(double grace_seconds = 0);
  void begin_drain();

  LoopState state() const;
  std::string state_message() const;  // why it is not ready; empty when it is
  EngineStats stats() const;          // as of the last step
  int64_t outstanding() const;
  double retry_after_seconds() const;  // a guess when a place in the queue is free: 1 to 60

 private:
  struct Letter {
    std::shared_ptr<Ticket> ticket;
    std::unique_ptr<Request> request;  // null: a cancellation
  };

  void run();
  void handle(std::vector<Letter>* letters);
  void submit_one(const std::shared_ptr<Ticket>& ticket, Request request);
  void on_output(const std::shared_ptr<Ticket>& ticket, const TokenOutput& output);
  void end_ticket(const std::shared_ptr<Ticket>& ticket, TokenOutput output);
  void expire(bool everything, const std::string& reason);
  void put(const std::shared_ptr<Ticket>& ticket, TokenOutput output);
  void announce();
  void run_probe();
  void set_state(LoopState state, std::string message);

  StepEngine& engine_;
  const LoopOptions options_;
  LoopListener* const listener_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, progress_;
  std::vector<Letter> letters_;
  LoopState state_ = LoopState::kStarting;
  std::string state_message_;
  EngineStats stats_;
  int64_t outstanding_ = 0;
  double mean_request_seconds_ = 1;  // exponential mean of ended requests
  bool drain_ = false, stop_ = false, cancel_all_ = false;

  Courier courier_;
  // The thread's own.
  std::unordered_map<uint64_t, std::shared_ptr<Ticket>> live_;  // by engine id
  std::vector<std::shared_ptr<Ticket::Signal>> news_;           // groups with outputs that nobody was told of
  double pause_seconds_ = 0;
  Ticket::Clock::time_point next_probe_;
  std::thread thread_;
};

}  // namespace dsv4
