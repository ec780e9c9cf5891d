// Fuzzes the wording file: any bytes give an encoder or an error, and an encoder renders any conversation.
#include <cstdlib>

#include "text/prompt_encoder.h"
#include "text/python_constants.h"

namespace {

constexpr const char* kMessages = R"([
  {"role": "system", "content": "s", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": 1.50}}}]},
  {"role": "latest_reminder", "content": "l"},
  {"role": "user", "content": "u"},
  {"role": "assistant", "content": "a", "reasoning_content": "r",
   "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1, \"b\": \"x\"}"}}]},
  {"role": "tool", "tool_call_id": "1", "content": "t"},
  {"role": "developer", "content": "d", "response_format": {"k": "v"}}])";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  (void)dsv4::read_python_constants(input, "fuzz");
  const auto encoder = dsv4::PromptEncoder::from_source(input, "fuzz");
  if (!encoder.ok()) return 0;
  static const auto messages = dsv4::parse_chat_messages(std::string_view(kMessages));
  for (const auto mode : {dsv4::ThinkingMode::kChat, dsv4::ThinkingMode::kThinking}) {
    if (!messages.ok() || !encoder->render(*messages, {.thinking_mode = mode}).ok()) std::abort();
  }
  return 0;
}
