#include "chat_session.h"

#include <chrono>

namespace dsv4 {

ChatSession::ChatSession(Engine& engine, PromptEncoder encoder, ChatOptions options)
    : engine_(engine), encoder_(std::move(encoder)), options_(std::move(options)) {
  clear();
}

void ChatSession::clear() {
  history_.clear();
  if (options_.system.empty() && options_.tool_schemas.empty()) return;
  ChatMessage system;
  system.role = ChatRole::kSystem;
  system.content = options_.system;
  system.tool_schemas = options_.tool_schemas;
  history_.push_back(system);
}

Result<ChatTurn> ChatSession::ask(const std::string& message, const Request& settings, const std::function<void(const CompletionEvent&)>& on_event,
                                  const std::atomic<bool>& stop) {
  using Clock = std::chrono::steady_clock;
  if (engine_.tokenizer() == nullptr) return invalid_argument("chat needs a model with a tokenizer.json");
  std::vector<ChatMessage> messages = history_;
  ChatMessage user;
  user.role = ChatRole::kUser;
  user.content = message;
  messages.push_back(user);
  DSV4_ASSIGN_OR_RETURN(const std::string prompt, encoder_.render(messages, options_.render));
  Request request = settings;
  DSV4_ASSIGN_OR_RETURN(request.prompt, engine_.tokenizer()->encode(prompt));

  ChatTurn turn;
  turn.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  turn.answer.role = ChatRole::kAssistant;
  CompletionParser parser(encoder_.markup(), options_.render.thinking_mode);
  const auto take = [&](const std::vector<CompletionEvent>& events) {
    for (const CompletionEvent& e : events) {
      if (e.kind == CompletionEvent::Kind::kReasoning) turn.answer.reasoning_content += e.text;
      if (e.kind == CompletionEvent::Kind::kContent) turn.answer.content += e.text;
      if (e.kind == CompletionEvent::Kind::kToolCallStart) turn.answer.tool_calls.push_back({"call_" + std::to_string(e.index), e.text, ""});
      if (e.kind == CompletionEvent::Kind::kToolCallArguments) turn.answer.tool_calls.back().arguments += e.text;
      on_event(e);
    }
  };
  Status error;
  const auto start = Clock::now();
  const auto since_start = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  DSV4_ASSIGN_OR_RETURN(const uint64_t id, engine_.submit(std::move(request), [&](const TokenOutput& o) {
    if (o.token >= 0 && ++turn.answer_tokens == 1) turn.first_token_seconds = since_start();
    take(parser.feed(o.text));
    turn.finish = o.finish;
    error = o.error;
  }));
  while (turn.finish == FinishReason::kNone) {
    if (stop.load()) engine_.cancel(id);
    DSV4_RETURN_IF_ERROR(engine_.step());
  }
  take(parser.finish());
  turn.seconds = since_start();
  DSV4_RETURN_IF_ERROR(error);
  messages.push_back(turn.answer);
  history_ = std::move(messages);
  return turn;
}

}  // namespace dsv4
