// Messages to prompt bytes, in a checkpoint's own wording. The rules, 1 to 5, stand in prompt_encoder.cc beside their code.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat_markup.h"
#include "text/chat_message.h"

namespace dsv4 {

struct PromptWording;

struct RenderOptions {
  ThinkingMode thinking_mode = ThinkingMode::kChat;
  bool drop_thinking = true;     // leave reasoning out of turns before the last user message (off when any message has tools)
  std::string reasoning_effort;  // one of effort_names(); empty = the checkpoint's default. Shows in thinking mode only
};

// Immutable; any number of threads may use one object. Copies share the wording.
class PromptEncoder {
 public:
  // Reads MODEL_DIR/encoding/encoding_dsv4.py. kNotFound without that file: such a checkpoint can complete text but not chat.
  static Result<PromptEncoder> load(const std::string& model_dir);

  // The same from the file's text; `name` stands in errors.
  static Result<PromptEncoder> from_source(std::string_view source, const std::string& name);

  // The prompt. Errors (kInvalidArgument): no messages, an unknown reasoning effort or task.
  Result<std::string> render(const std::vector<ChatMessage>& messages, const RenderOptions& options) const;

  const ChatMarkup& markup() const;
  std::vector<std::string> effort_names() const;
  const std::string& default_effort() const;

 private:
  explicit PromptEncoder(std::shared_ptr<const PromptWording> wording) : wording_(std::move(wording)) {}

  std::shared_ptr<const PromptWording> wording_;
};

}  // namespace dsv4
