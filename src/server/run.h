// A request in flight: its choices' tickets and answers, and the loop that carries events to whoever writes the reply.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/answer.h"
#include "server/engine_loop.h"

namespace dsv4 {

class Run {
 public:
  Run(EngineLoop& loop, std::vector<std::shared_ptr<Ticket>> tickets, std::vector<Answer> answers)
      : loop_(&loop), tickets_(std::move(tickets)), answers_(std::move(answers)) {}
  Run(Run&&) = default;
  Run& operator=(Run&&) = delete;
  ~Run();  // cancels what has not ended

  struct Hooks {
    std::function<bool()> peer_gone;
    std::function<void(size_t choice, AnswerEvent event)> on_event;
    std::function<void()> on_silence = nullptr;  // nothing came for a while: a stream may show that it lives
  };

  // Until all choices have ended: true. False once the peer is gone: everything is cancelled.
  bool drive(const Hooks& hooks);

  int64_t prompt_tokens() const { return answers_.front().prompt_tokens(); }  // of the first choice

 private:
  EngineLoop* loop_;
  std::vector<std::shared_ptr<Ticket>> tickets_;
  std::vector<Answer> answers_;
};

}  // namespace dsv4
