// The three tools of this room on JSON lines: one JSON object in, one out. What the command line offers, and what golden files hold.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/prompt_encoder.h"
#include "text/tokenizer.h"

namespace dsv4 {

// {"text"} -> {"ids":[...]}. `name` stands in errors, as in the other two.
Result<std::string> tokenize_row(const Tokenizer& tokenizer, std::string_view row, const EncodeOptions& options, const std::string& name);

// {"messages", "thinking_mode", "drop_thinking", "reasoning_effort"}, the last three also inside "options" -> {"prompt"}. What a row
// leaves out is taken from `defaults`. Members of other names are passed over, except inside "options".
Result<std::string> render_row(const PromptEncoder& encoder, std::string_view row, const RenderOptions& defaults, const std::string& name);

// The prompt itself instead of {"prompt"}.
Result<std::string> render_request(const PromptEncoder& encoder, std::string_view row, const RenderOptions& defaults, const std::string& name);

// {"text", "thinking_mode"} -> {"message":{...}}, or {"strict_error":true} where the strict reading fails. `tolerant` reads tolerantly.
struct ParseRowOptions {
  ThinkingMode thinking_mode = ThinkingMode::kChat;  // for rows that do not say
  bool tolerant = false;
};
Result<std::string> parse_row(const ChatMarkup& markup, std::string_view row, const ParseRowOptions& options, const std::string& name);

// One completion (not a row) -> {"message":{...}}; the strict reading's error otherwise.
Result<std::string> parse_text(const ChatMarkup& markup, std::string_view text, const ParseRowOptions& options);

// Applies `row` to each line of `text` (lines end with \n alone; blank lines are skipped) and joins the results as lines. `name` and
// the line's number go before an error: "NAME:3: ...". Nothing comes out unless all rows are good.
Result<std::string> map_json_lines(std::string_view text, const std::string& name,
                                   const std::function<Result<std::string>(std::string_view row, const std::string& name)>& row);

}  // namespace dsv4
