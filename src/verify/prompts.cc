#include "verify/prompts.h"

#include <fmt/format.h>

namespace dsv4 {

Result<std::vector<int32_t>> encode_prompt(const Engine& engine, const CheckPrompt& prompt) {
  if (engine.tokenizer() == nullptr) return unsupported("model " + engine.checkpoint().model() + " has no tokenizer.json, so it cannot be asked in words");
  std::string text = prompt.message;
  const auto encoder = PromptEncoder::load(engine.checkpoint().directory());
  if (encoder.ok()) {
    std::vector<ChatMessage> messages(1);
    messages[0].content = prompt.message;
    if (!prompt.tool_schemas.empty()) attach_request_tools(prompt.tool_schemas, "", &messages);
    DSV4_ASSIGN_OR_RETURN(text, encoder->render(messages, {}));
  } else if (encoder.status().code() != StatusCode::kNotFound) {
    return encoder.status();
  }
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids, engine.tokenizer()->encode(text));
  const int32_t bos = engine.config().bos_token_id;
  if (ids.empty() || ids.front() != bos) ids.insert(ids.begin(), bos);
  return ids;
}

std::string plain_bytes(const Tokenizer& tokenizer, std::span<const int32_t> tokens) {
  std::string out;
  for (const int32_t t : tokens) {
    if (!tokenizer.is_special(t)) out += tokenizer.token_bytes(t);
  }
  return out;
}

std::string python_repr(std::string_view utf8) {
  std::string out = "'";
  for (const char c : utf8) {
    const auto b = static_cast<unsigned char>(c);
    switch (c) {
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      case '\\': out += "\\\\"; break;
      case '\'': out += "\\'"; break;
      default:
        if (b < 0x20 || b == 0x7F) {
          out += fmt::format("\\x{:02x}", b);
        } else {
          out += c;
        }
    }
  }
  return out + "'";
}

}  // namespace dsv4
