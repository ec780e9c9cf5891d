// What a chat request comes down to, whichever API it came through.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/chat_message.h"

namespace dsv4 {

struct ToolSpec {
  std::string name;
  std::string schema_text;  // of the whole function, as the prompt shows it
  JsonValue parameters;     // JSON schema of its arguments; kNull = none given
};

enum class ToolChoice { kNone, kAuto, kRequired, kNamed };
enum class OutputFormat { kText, kJsonObject, kJsonSchema };

struct ChatSpec {
  std::string model;  // as the client named it
  std::vector<ChatMessage> messages;

  std::vector<ToolSpec> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named_tool;
  bool parallel_tool_calls = true;

  OutputFormat format = OutputFormat::kText;
  JsonValue schema;  // with kJsonSchema

  bool thinking = false;
  std::string effort;  // one of the model's names; empty = its default

  SamplingParams sampling;
  std::optional<int64_t> max_tokens;  // none = what the context leaves
  std::vector<std::string> stop;      // not looked for in thinking
  bool ignore_eos = false;
  int n = 1;
  int num_logprobs = -1;  // as in Request

  bool stream = false;
  bool stream_usage = false;
};

}  // namespace dsv4
