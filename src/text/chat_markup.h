// The markup of a conversation, as a checkpoint's wording file spells it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace dsv4 {

enum class ThinkingMode {
  kChat,      // the answer at once
  kThinking,  // reasoning first, then its end token, then the answer
};

// "chat" or "thinking"; kInvalidArgument otherwise.
Result<ThinkingMode> parse_thinking_mode(std::string_view text);

struct ChatMarkup {
  std::string bos;             // begins a prompt
  std::string eos;             // ends an assistant message
  std::string thinking_start;  // around reasoning
  std::string thinking_end;
  std::string dsml;                   // inside every tag of a tool call: <DSMLinvoke ...>
  std::string tool_calls_block_name;  // the tag around all calls of a message
};

}  // namespace dsv4
