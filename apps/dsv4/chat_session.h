// A conversation on an engine: renders the history, streams the answer, keeps what was said.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/completion_parser.h"
#include "text/prompt_encoder.h"

namespace dsv4 {

struct ChatOptions {
  RenderOptions render;
  std::vector<std::string> tool_schemas;
  std::string system;
};

struct ChatTurn {
  ChatMessage answer;
  FinishReason finish = FinishReason::kNone;
  int64_t prompt_tokens = 0, answer_tokens = 0;
  double first_token_seconds = 0, seconds = 0;
};

class ChatSession {
 public:
  ChatSession(Engine& engine, PromptEncoder encoder, ChatOptions options);

  // Adds the user's message and answers it. `stop` set from elsewhere (a signal) cancels the answer; what was said so far stays in the
  // history. On error the history is as before.
  Result<ChatTurn> ask(const std::string& message, const Request& settings, const std::function<void(const CompletionEvent&)>& on_event,
                       const std::atomic<bool>& stop);
  void clear();
  size_t num_messages() const { return history_.size(); }

 private:
  Engine& engine_;
  PromptEncoder encoder_;
  ChatOptions options_;
  std::vector<ChatMessage> history_;
};

}  // namespace dsv4
