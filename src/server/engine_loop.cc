#include "server/engine_loop.h"

#include <algorithm>

#include "base/log.h"

namespace dsv4 {
namespace {

class RealEngine : public StepEngine {
 public:
  explicit RealEngine(Engine& engine) : engine_(engine) {}
  Result<uint64_t> submit(Request request, OutputSink sink) override { return engine_.submit(std::move(request), std::move(sink)); }
  void cancel(uint64_t request_id) override { engine_.cancel(request_id); }
  bool idle() const override { return engine_.idle(); }
  Status step() override { return engine_.step(); }
  EngineStats stats() const override { return engine_.stats(); }

 private:
  Engine& engine_;
};

double seconds_between(Ticket::Clock::time_point from, Ticket::Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

Ticket::Clock::duration seconds(double s) { return std::chrono::duration_cast<Ticket::Clock::duration>(std::chrono::duration<double>(s)); }

}  // namespace

std::unique_ptr<StepEngine> make_step_engine(Engine& engine) { return std::make_unique<RealEngine>(engine); }

const char* loop_state_name(LoopState state) {
  switch (state) {
    case LoopState::kStarting: return "starting";
    case LoopState::kReady: return "ready";
    case LoopState::kFailed: return "failed";
    case LoopState::kDraining: return "draining";
    case LoopState::kStopped: return "stopped";
  }
  return "?";
}

std::optional<Status> Ticket::wait_accepted(std::chrono::milliseconds limit) {
  std::unique_lock lock(signal_->mutex);
  if (!signal_->changed.wait_for(lock, limit, [&] { return answered_; })) return std::nullopt;
  return answer_;
}

std::vector<TokenOutput> Ticket::take(std::chrono::milliseconds wait) {
  std::unique_lock lock(signal_->mutex);
  signal_->changed.wait_for(lock, wait, [&] { return !outputs_.empty(); });
  return std::exchange(outputs_, {});
}

std::vector<Ticket::Arrival> Ticket::take(std::span<const std::shared_ptr<Ticket>> group, std::chrono::milliseconds wait) {
  std::vector<Arrival> out;
  if (group.empty()) return out;
  Signal& signal = *group[0]->signal_;
  std::unique_lock lock(signal.mutex);
  signal.changed.wait_for(lock, wait, [&] { return std::any_of(group.begin(), group.end(), [](const auto& t) { return !t->outputs_.empty(); }); });
  for (size_t i = 0; i < group.size(); ++i) {
    for (TokenOutput& output : group[i]->outputs_) out.push_back({i, std::move(output)});
    group[i]->outputs_.clear();
  }
  return out;
}

void Ticket::carry(std::span<const std::shared_ptr<Ticket>> group, std::shared_ptr<Courier::Round> round) {
  if (group.empty()) return;
  std::lock_guard lock(group[0]->signal_->mutex);
  group[0]->signal_->round = std::move(round);
}

bool Ticket::timed_out() const {
  std::lock_guard lock(signal_->mutex);
  return timed_out_;
}

EngineLoop::EngineLoop(StepEngine& engine, LoopOptions options, LoopListener* listener)
    : engine_(engine), options_(std::move(options)), listener_(listener), thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() { stop(); }

Result<std::vector<std::shared_ptr<Ticket>>> EngineLoop::submit(std::vector<Request> requests) {
  std::vector<std::shared_ptr<Ticket>> tickets;
  {
    std::lock_guard lock(mutex_);
    if (drain_ || state_ == LoopState::kStopped) return cancelled("the server is shutting down");
    if (state_ != LoopState::kReady)
      return device_error(std::string("the engine is ") + loop_state_name(state_) + (state_message_.empty() ? "" : ": " + state_message_));
    const int64_t count = static_cast<int64_t>(requests.size());
    if (outstanding_ + count > options_.max_outstanding) {
      if (listener_ != nullptr) listener_->on_rejected();
      return resource_limit("the server is full: " + std::to_string(outstanding_) + " requests run or wait, at most " +
                            std::to_string(options_.max_outstanding) + " may");
    }
    outstanding_ += count;
    const auto now = Ticket::Clock::now();
    const auto signal = std::make_shared<Ticket::Signal>();
    for (Request& request : requests) {
      auto ticket = std::make_shared<Ticket>();
      ticket->signal_ = signal;
      ticket->created_ = ticket->last_token_ = now;
      ticket->deadline_ = options_.request_seconds > 0 ? now + seconds(options_.request_seconds) : Ticket::Clock::time_point::max();
      ticket->prompt_tokens_ = static_cast<int64_t>(request.prompt.size());
      tickets.push_back(ticket);
      letters_.push_back({ticket, std::make_unique<Request>(std::move(request))});
    }
  }
  wake_.notify_one();
  return tickets;
}

void EngineLoop::cancel(const std::shared_ptr<Ticket>& ticket) {
  {
    std::lock_guard lock(mutex_);
    letters_.push_back({ticket, nullptr});
  }
  wake_.notify_one();
}

void EngineLoop::begin_drain() {
  std::lock_guard lock(mutex_);
  drain_ = true;
  if (state_ == LoopState::kReady) state_ = LoopState::kDraining;
}

void EngineLoop::stop(double grace_seconds) {
  begin_drain();
  {
    std::unique_lock lock(mutex_);
    progress_.wait_for(lock, seconds(grace_seconds), [&] { return outstanding_ == 0; });
    cancel_all_ = stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

LoopState EngineLoop::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

std::string EngineLoop::state_message() const {
  std::lock_guard lock(mutex_);
  return state_message_;
}

EngineStats EngineLoop::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

int64_t EngineLoop::outstanding() const {
  std::lock_guard lock(mutex_);
  return outstanding_;
}

double EngineLoop::retry_after_seconds() const {
  std::lock_guard lock(mutex_);
  return std::clamp(mean_request_seconds_, 1.0, 60.0);
}

void EngineLoop::set_state(LoopState state, std::string message) {
  std::lock_guard lock(mutex_);
  state_ = drain_ && state == LoopState::kReady ? LoopState::kDraining : state;
  state_message_ = std::move(message);
}

void EngineLoop::run_probe() {
  const Status status = options_.probe ? options_.probe(engine_) : ok_status();
  if (status.ok()) {
    pause_seconds_ = options_.recover_seconds;
    set_state(LoopState::kReady, "");
    return;
  }
  log_error("engine probe failed: " + status.message());
  set_state(LoopState::kFailed, status.message());
  next_probe_ = Ticket::Clock::now() + seconds(pause_seconds_);
  pause_seconds_ = std::min(60.0, pause_seconds_ * 2);
}

void EngineLoop::run() {
  pause_seconds_ = options_.recover_seconds;
  run_probe();
  for (;;) {
    std::vector<Letter> letters;
    bool failed = false, cancel_all = false;
    {
      std::unique_lock lock(mutex_);
      failed = state_ == LoopState::kFailed;
      const auto due = [&] { return !letters_.empty() || stop_ || !engine_.idle(); };
      if (failed) {
        wake_.wait_until(lock, next_probe_, due);
      } else {
        wake_.wait(lock, due);
      }
      letters.swap(letters_);
      cancel_all = cancel_all_;
      if (stop_ && letters.empty() && live_.empty()) break;
    }
    handle(&letters);
    expire(cancel_all, "the server is shutting down");
    announce();
    if (failed && Ticket::Clock::now() >= next_probe_ && !cancel_all) run_probe();
    if (!engine_.idle()) {
      const auto start = Ticket::Clock::now();
      const Status status = engine_.step();
      if (listener_ != nullptr) listener_->on_step(seconds_between(start, Ticket::Clock::now()));
      if (!status.ok()) {
        log_error("engine step failed: " + status.message());
        expire(true, status.message());  // the engine ended them all; this is for those it forgot
        set_state(LoopState::kFailed, status.message());
        next_probe_ = Ticket::Clock::now() + seconds(pause_seconds_);
      }
      announce();
    }
    std::lock_guard lock(mutex_);
    stats_ = engine_.stats();
  }
  set_state(LoopState::kStopped, "");
}

void EngineLoop::handle(std::vector<Letter>* letters) {
  for (Letter& letter : *letters) {
    const std::shared_ptr<Ticket>& ticket = letter.ticket;
    if (letter.request != nullptr) {
      submit_one(ticket, std::move(*letter.request));
    } else if (!ticket->ended_) {
      engine_.cancel(ticket->engine_id_);  // its sink ends the ticket
    }
  }
}

void EngineLoop::submit_one(const std::shared_ptr<Ticket>& ticket, Request request) {
  auto id = engine_.submit(std::move(request), [this, ticket](const TokenOutput& output) { on_output(ticket, output); });
  if (id.ok()) {
    ticket->engine_id_ = *id;
    ticket->submitted_ = true;
    live_[*id] = ticket;
  }
  {
    std::lock_guard lock(ticket->signal_->mutex);
    ticket->answered_ = true;
    ticket->answer_ = id.status();
  }
  ticket->signal_->changed.notify_all();
  if (!id.ok()) {
    TokenOutput output;
    output.finish = FinishReason::kError;
    output.error = id.status();
    end_ticket(ticket, std::move(output));
  }
}

void EngineLoop::on_output(const std::shared_ptr<Ticket>& ticket, const TokenOutput& output) {
  if (ticket->ended_) return;
  if (output.token >= 0) {
    const auto now = Ticket::Clock::now();
    if (listener_ != nullptr) listener_->on_token(seconds_between(ticket->last_token_, now), ticket->generated_tokens_ == 0);
    ticket->last_token_ = now;
    ++ticket->generated_tokens_;
  }
  if (output.finish != FinishReason::kNone) {
    end_ticket(ticket, output);
    return;
  }
  put(ticket, output);
}

// What came is told at the end of the step, all at once: a thread that wakes here would take the engine's core.
void EngineLoop::put(const std::shared_ptr<Ticket>& ticket, TokenOutput output) {
  const std::shared_ptr<Ticket::Signal>& signal = ticket->signal_;
  {
    std::lock_guard lock(signal->mutex);
    ticket->outputs_.push_back(std::move(output));
  }
  if (!std::exchange(signal->has_news, true)) news_.push_back(signal);
}

void EngineLoop::announce() {
  std::vector<std::shared_ptr<Courier::Round>> rounds;
  for (const auto& signal : news_) {
    signal->has_news = false;
    std::unique_lock lock(signal->mutex);
    if (signal->round != nullptr) {
      rounds.push_back(signal->round);
      continue;
    }
    lock.unlock();
    signal->changed.notify_all();
  }
  news_.clear();
  if (!rounds.empty()) courier_.post(std::move(rounds));
}

void EngineLoop::end_ticket(const std::shared_ptr<Ticket>& ticket, TokenOutput output) {
  ticket->ended_ = true;
  live_.erase(ticket->engine_id_);
  const double total = seconds_between(ticket->created_, Ticket::Clock::now());
  if (listener_ != nullptr && ticket->submitted_) {
    listener_->on_end({output.finish, ticket->timed_out_, ticket->prompt_tokens_, ticket->generated_tokens_, output.num_cached_tokens, total});
  }
  put(ticket, std::move(output));
  {
    std::lock_guard lock(mutex_);
    --outstanding_;
    mean_request_seconds_ = 0.9 * mean_request_seconds_ + 0.1 * total;
  }
  progress_.notify_all();
}

// Ends what is past its deadline, or everything.
void EngineLoop::expire(bool everything, const std::string& reason) {
  const auto now = Ticket::Clock::now();
  std::vector<std::shared_ptr<Ticket>> late;
  for (const auto& [id, ticket] : live_) {
    if (everything || now >= ticket->deadline_) late.push_back(ticket);
  }
  for (const auto& ticket : late) {
    TokenOutput output;
    output.request_id = ticket->engine_id_;
    output.finish = FinishReason::kCancelled;
    output.error = cancelled(everything ? reason : "the request took longer than " + std::to_string(options_.request_seconds) + " s");
    if (!everything) {
      std::lock_guard lock(ticket->signal_->mutex);
      ticket->timed_out_ = true;
    }
    const uint64_t id = ticket->engine_id_;
    end_ticket(ticket, std::move(output));
    engine_.cancel(id);  // on_output passes its last word over: the ticket has ended
  }
}

}  // namespace dsv4
