// A conversation as plain data, and its reading from the JSON of a request.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json_value.h"

namespace dsv4 {

enum class ChatRole { kSystem, kUser, kDeveloper, kLatestReminder, kAssistant, kTool };

std::string_view to_string(ChatRole role);

struct ToolCall {
  std::string id;  // may be empty
  std::string name;
  std::string arguments;  // JSON text of an object; any other text is kept as it is
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;                    // a list content: its text parts, other parts as "[Unsupported TYPE]", joined by "\n\n"
  std::string reasoning_content;          // assistant
  std::vector<ToolCall> tool_calls;       // assistant
  bool without_eos = false;               // assistant, member "wo_eos": the message goes on; no end token follows
  std::string tool_call_id;               // tool: the call it answers
  std::optional<std::string> task;        // user and developer: "title", "query", ...
  std::vector<std::string> tool_schemas;  // system and developer: JSON text of each tool's "function", as Python writes it
  std::string response_format;            // system and developer: JSON text, as Python writes it; empty = none
  std::string name;                       // accepted; prompts do not show it
};

// Reads a "messages" array. Errors (kInvalidArgument) name the place: "messages[2].content must be a string, an array of parts or
// null, is a number". Members that mean nothing to a prompt are passed over; those that would be lost are refused.
Result<std::vector<ChatMessage>> parse_chat_messages(const JsonValue& messages);

// The same from JSON text.
Result<std::vector<ChatMessage>> parse_chat_messages(std::string_view json_text);

// Reads a "tools" array ([{"type": "function", "function": {...}}, ...]) into tool_schemas. `where` stands in errors.
Result<std::vector<std::string>> parse_tools(const JsonValue& tools, const std::string& where);

// Puts the tools (and response format, if not empty) of a request on its first message if that is a system message, else on a new
// empty system message before it. Where that message has its own, the new ones follow, or replace the response format.
void attach_request_tools(std::vector<std::string> tool_schemas, std::string response_format, std::vector<ChatMessage>* messages);

}  // namespace dsv4
