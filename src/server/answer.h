// One choice of an answer: the engine's tokens in, the pieces that clients see out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"
#include "text/completion_parser.h"
#include "text/tokenizer.h"

namespace dsv4 {

struct ShownLogprob {
  std::string token;  // its bytes
  int32_t id = 0;
  float logprob = 0;
};

struct ShownToken {
  ShownLogprob chosen;
  std::vector<ShownLogprob> top;
};

struct AnswerUsage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
};

struct AnswerEvent {
  enum class Kind { kReasoning, kContent, kToolStart, kToolArguments, kToolEnd, kEnd };
  Kind kind = Kind::kContent;
  std::string text;  // kReasoning, kContent, kToolArguments: more of it; kToolStart: the function's name
  int tool_index = -1;
  std::string tool_id;               // kToolStart
  std::vector<ShownToken> logprobs;  // kContent, kEnd: of tokens that no earlier event showed

  // kEnd
  std::string finish;     // "stop", "length", "tool_calls"; empty with an error
  std::string stop_text;  // the stop string that ended it
  std::optional<ApiError> error;
  AnswerUsage usage;
};

struct AnswerOptions {
  const Tokenizer* tokenizer = nullptr;
  const ChatMarkup* markup = nullptr;  // null: no chat; all text is content
  ThinkingMode mode = ThinkingMode::kChat;
  bool single_call = false;  // end after the first tool call
  int64_t prompt_tokens = 0;
  std::vector<std::string> stops;
};

class Answer {
 public:
  explicit Answer(AnswerOptions options);

  // The events of one output. After kEnd nothing comes any more.
  std::vector<AnswerEvent> feed(const TokenOutput& output, bool timed_out = false);

  bool ended() const { return ended_; }
  int64_t prompt_tokens() const { return options_.prompt_tokens; }

 private:
  void translate(std::vector<CompletionEvent> events, std::vector<AnswerEvent>* out);
  ShownToken shown(const TokenOutput& output) const;

  const AnswerOptions options_;
  std::optional<CompletionParser> parser_;
  int32_t thinking_end_ = -1;
  bool thinking_ = false;
  bool ended_ = false, early_ = false;
  int num_calls_ = 0;
  AnswerUsage usage_;
  std::vector<ShownToken> waiting_;
};

// "call_" and 24 characters, new each time.
std::string new_call_id(const char* prefix = "call_");

}  // namespace dsv4
