// The body of POST /v1/chat/completions. docs/api.md lists each field: honoured, ignored or refused.
#pragma once

#include <string>

#include "server/chat_spec.h"
#include "server/sampling_fields.h"
#include "server/thinking_fields.h"

namespace dsv4 {

// What the model and the server's flags settle for all requests.
struct ApiRules {
  std::vector<std::string> model_names;  // accepted as "model"; the first is the one shown. Empty request field: the first
  bool any_model_name = false;
  int64_t vocab_size = 0;
  int64_t max_choices = 16;  // "n"
  SamplingDefaults sampling;
  ThinkingRules thinking;
};

ApiResult<ChatSpec> read_chat_request(const JsonValue& body, const ApiRules& rules);

// Shared with the other APIs.

// The "model" field; a 404 for a name the server does not have.
std::string read_model(FieldReader& fields, const ApiRules& rules);

// A "function" of a tool: {"name", "description", "parameters", "strict"}.
std::optional<ToolSpec> read_function(FieldReader& fields, const JsonValue& function, const std::string& where);

// {"type": "text" | "json_object" | "json_schema", ...}: with `schema_holder` the member that holds {"name", "schema", "strict"};
// null = the object itself holds them.
void read_output_format(FieldReader& fields, const JsonValue& format, const std::string& where, const char* schema_holder, ChatSpec* out);

// Faults of "messages" that the prompt encoder would gloss over: parts that are no text. Empty when there are none.
std::optional<ApiError> unreadable_part(const JsonValue& messages);

// Rules across fields: a named tool exists, constrained formats go without forced tools, ...
std::optional<ApiError> cross_check(const ChatSpec& spec);

}  // namespace dsv4
