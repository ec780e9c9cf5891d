#include "text/text_rows.h"

#include <fmt/format.h>

#include "base/json.h"
#include "text/completion_parser.h"
#include "text/json_value.h"

namespace dsv4 {
namespace {

bool absent(const JsonValue* value) { return value == nullptr || value->is(JsonKind::kNull); }

Result<JsonValue> read_object(std::string_view row, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(JsonValue json, read_json(row, name));
  if (!json.is(JsonKind::kObject)) return invalid_data(name + ": must be a JSON object, is " + json.kind_name());
  return json;
}

Result<std::string> string_member(const JsonValue& object, const char* member, const std::string& name) {
  const JsonValue* value = object.find(member);
  if (value == nullptr) return invalid_data(fmt::format("{}: lacks \"{}\"", name, member));
  if (!value->is(JsonKind::kString)) return invalid_data(fmt::format("{}: \"{}\" must be a string, is {}", name, member, value->kind_name()));
  return value->text;
}

Status read_thinking_mode(const JsonValue& object, const std::string& name, ThinkingMode* out) {
  if (absent(object.find("thinking_mode"))) return ok_status();
  DSV4_ASSIGN_OR_RETURN(const std::string text, string_member(object, "thinking_mode", name));
  const Result<ThinkingMode> mode = parse_thinking_mode(text);
  if (!mode.ok()) return mode.status().with_context(name);
  *out = *mode;
  return ok_status();
}

Status read_render_options(const JsonValue& object, const std::string& name, RenderOptions* out) {
  DSV4_RETURN_IF_ERROR(read_thinking_mode(object, name, &out->thinking_mode));
  if (const JsonValue* drop = object.find("drop_thinking"); !absent(drop)) {
    if (!drop->is_bool()) return invalid_data(name + ": \"drop_thinking\" must be a boolean, is " + drop->kind_name());
    out->drop_thinking = drop->is(JsonKind::kTrue);
  }
  if (!absent(object.find("reasoning_effort"))) {
    DSV4_ASSIGN_OR_RETURN(out->reasoning_effort, string_member(object, "reasoning_effort", name));
  }
  return ok_status();
}

std::string message_json(const ParsedCompletion& parsed) {
  Json calls = Json::array();
  for (const ParsedToolCall& call : parsed.tool_calls) {
    calls.push_back({{"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  const Json message = {{"role", "assistant"}, {"content", parsed.content}, {"reasoning_content", parsed.reasoning_content}, {"tool_calls", calls}};
  return Json{{"message", message}}.dump();
}

}  // namespace

Result<std::string> tokenize_row(const Tokenizer& tokenizer, std::string_view row, const EncodeOptions& options, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue json, read_object(row, name));
  DSV4_ASSIGN_OR_RETURN(const std::string text, string_member(json, "text", name));
  const Result<std::vector<int32_t>> ids = tokenizer.encode(text, options);
  if (!ids.ok()) return ids.status().with_context(name);
  return Json{{"ids", *ids}}.dump();
}

Result<std::string> render_request(const PromptEncoder& encoder, std::string_view row, const RenderOptions& defaults, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue json, read_object(row, name));
  RenderOptions options = defaults;
  DSV4_RETURN_IF_ERROR(read_render_options(json, name, &options));
  if (const JsonValue* inner = json.find("options"); !absent(inner)) {
    if (!inner->is(JsonKind::kObject)) return invalid_data(name + ": \"options\" must be an object, is " + inner->kind_name());
    for (const std::string& member : inner->names) {
      if (member != "thinking_mode" && member != "drop_thinking" && member != "reasoning_effort") {
        return invalid_data(fmt::format("{}: \"options\" has the unknown member \"{}\"", name, member));
      }
    }
    DSV4_RETURN_IF_ERROR(read_render_options(*inner, name + ": options", &options));
  }
  const JsonValue* messages = json.find("messages");
  if (messages == nullptr) return invalid_data(name + ": lacks \"messages\"");
  const auto parsed = parse_chat_messages(*messages);
  if (!parsed.ok()) return parsed.status().with_context(name);
  Result<std::string> prompt = encoder.render(*parsed, options);
  if (!prompt.ok()) return prompt.status().with_context(name);
  return prompt;
}

Result<std::string> render_row(const PromptEncoder& encoder, std::string_view row, const RenderOptions& defaults, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const std::string prompt, render_request(encoder, row, defaults, name));
  return Json{{"prompt", prompt}}.dump();
}

Result<std::string> parse_text(const ChatMarkup& markup, std::string_view text, const ParseRowOptions& options) {
  if (options.tolerant) return message_json(parse_completion(text, options.thinking_mode, markup));
  DSV4_ASSIGN_OR_RETURN(const ParsedCompletion parsed, parse_completion_strict(text, options.thinking_mode, markup));
  return message_json(parsed);
}

Result<std::string> parse_row(const ChatMarkup& markup, std::string_view row, const ParseRowOptions& options, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue json, read_object(row, name));
  DSV4_ASSIGN_OR_RETURN(const std::string text, string_member(json, "text", name));
  ParseRowOptions row_options = options;
  DSV4_RETURN_IF_ERROR(read_thinking_mode(json, name, &row_options.thinking_mode));
  Result<std::string> message = parse_text(markup, text, row_options);
  if (!message.ok()) return std::string("{\"strict_error\":true}");
  return message;
}

Result<std::string> map_json_lines(std::string_view text, const std::string& name,
                                   const std::function<Result<std::string>(std::string_view row, const std::string& name)>& row) {
  std::string out;
  size_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    DSV4_ASSIGN_OR_RETURN(const std::string result, row(line, fmt::format("{}:{}", name, number)));
    out += result + "\n";
  }
  return out;
}

}  // namespace dsv4
