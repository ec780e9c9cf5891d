// A request in flight: its choices' tickets and answers, and the loop that carries events to whoever writes the reply.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/answer.h"
#include "server/engine_loop.h"
#include "server/http_types.h"

namespace dsv4 {

class Run {
 public:
  Run(EngineLoop& loop, std::vector<std::shared_ptr<Ticket>> tickets, std::vector<Answer> answers)
      : loop_(&loop), tickets_(std::move(tickets)), answers_(std::move(answers)) {}
  Run(Run&&) = default;
  Run& operator=(Run&&) = delete;
  ~Run();  // cancels what has not ended

  struct Hooks {
    // Either: asks for the peer of a reply that is written at the end; or the stream that the hooks write to. A stream's hooks are called on the
    // loop's courier while the peer keeps up, else on the thread of drive().
    std::function<bool()> peer_gone = nullptr;
    StreamWriter* stream = nullptr;
    std::function<void(size_t choice, AnswerEvent event)> on_event;
    std::function<void()> on_silence = nullptr;  // nothing came for a while: a stream may show that it lives
  };

  // Until all choices have ended: true. False once the peer is gone: everything is cancelled.
  bool drive(const Hooks& hooks);

  int64_t prompt_tokens() const { return answers_.front().prompt_tokens(); }  // of the first choice

 private:
  bool ended() const;
  // Passes on what came within `wait`.
  void pass_on(const Hooks& hooks, std::chrono::milliseconds wait);

  EngineLoop* loop_;
  std::vector<std::shared_ptr<Ticket>> tickets_;
  std::vector<Answer> answers_;
  Ticket::Clock::time_point heard_;
};

}  // namespace dsv4
