#include "text/chat_markup.h"

#include <fmt/format.h>

namespace dsv4 {

Result<ThinkingMode> parse_thinking_mode(std::string_view text) {
  if (text == "chat") return ThinkingMode::kChat;
  if (text == "thinking") return ThinkingMode::kThinking;
  return invalid_argument(fmt::format("thinking_mode must be chat or thinking, is \"{}\"", text));
}

}  // namespace dsv4
