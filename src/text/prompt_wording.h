// The wording of prompts: constants of a checkpoint's encoding/encoding_dsv4.py, checked and ready to fill in.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/chat_markup.h"
#include "text/format_template.h"

namespace dsv4 {

struct PromptWording {
  ChatMarkup markup;
  std::string user_token;                                        // USER_SP_TOKEN
  std::string assistant_token;                                   // ASSISTANT_SP_TOKEN
  std::string latest_reminder_token;                             // LATEST_REMINDER_SP_TOKEN
  std::vector<std::pair<std::string, std::string>> task_tokens;  // DS_TASK_SP_TOKENS

  // REASONING_EFFORT_PROMPTS and DEFAULT_REASONING_EFFORT (0731), or made from REASONING_EFFORT_MAX (April): "none" and "high" add
  // nothing, "max" adds that text, the default is "none".
  std::vector<std::pair<std::string, std::string>> efforts;
  std::string default_effort;

  FormatTemplate system_message;     // {content}
  FormatTemplate user_message;       // {content}: developer messages only
  FormatTemplate latest_reminder;    // {content}
  FormatTemplate assistant_message;  // {reasoning}{content}{tool_calls}
  FormatTemplate assistant_message_without_eos;
  FormatTemplate thinking;         // {reasoning_content}
  FormatTemplate response_format;  // {schema}
  FormatTemplate tool_call;        // {dsml_token}{name}{arguments}
  FormatTemplate tool_calls;       // {dsml_token}{tc_block_name}{tool_calls}
  FormatTemplate tool_output;      // {content}
  FormatTemplate tools;            // {tool_schemas}{dsml_token}{thinking_start_token}{thinking_end_token}
};

// `name` stands in errors: a constant that is missing or unreadable, a template with a field that is not filled in.
Result<PromptWording> read_prompt_wording(std::string_view source, const std::string& name);

}  // namespace dsv4
