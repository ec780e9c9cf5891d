#include "text/chat_message.h"

#include <fmt/format.h>

#include "text/python_json.h"

namespace dsv4 {
namespace {

constexpr std::pair<std::string_view, ChatRole> kRoles[] = {
    {"system", ChatRole::kSystem},       {"user", ChatRole::kUser}, {"developer", ChatRole::kDeveloper},
    {"assistant", ChatRole::kAssistant}, {"tool", ChatRole::kTool}, {"latest_reminder", ChatRole::kLatestReminder},
};

bool absent(const JsonValue* value) { return value == nullptr || value->is(JsonKind::kNull); }

// Python's truth of a value: null, false, "", [], {} and 0 are not.
bool is_truthy(const JsonValue* value) {
  if (value == nullptr) return false;
  switch (value->kind) {
    case JsonKind::kNull:
    case JsonKind::kFalse: return false;
    case JsonKind::kTrue: return true;
    case JsonKind::kNumber: return value->text.find_first_of("123456789") != std::string::npos;
    case JsonKind::kString: return !value->text.empty();
    case JsonKind::kArray:
    case JsonKind::kObject: return !value->items.empty();
  }
  return false;
}

Status must_be(const std::string& where, const std::string& what, const JsonValue& value) {
  return invalid_argument(fmt::format("{} must be {}, is {}", where, what, value.kind_name()));
}

// A string member, empty when it is absent or null.
Status read_string(const JsonValue& object, const char* member, const std::string& where, std::string* out) {
  const JsonValue* value = object.find(member);
  if (absent(value)) return ok_status();
  if (!value->is(JsonKind::kString)) return must_be(where + "." + member, "a string", *value);
  *out = value->text;
  return ok_status();
}

Status read_content(const JsonValue& message, const std::string& where, std::string* out) {
  const JsonValue* content = message.find("content");
  if (absent(content)) return ok_status();
  if (content->is(JsonKind::kString)) {
    *out = content->text;
    return ok_status();
  }
  if (!content->is(JsonKind::kArray)) return must_be(where + ".content", "a string, an array of parts or null", *content);
  for (size_t i = 0; i < content->items.size(); ++i) {
    const JsonValue& part = content->items[i];
    const std::string place = fmt::format("{}.content[{}]", where, i);
    const JsonValue* type = part.find("type");
    if (type == nullptr || !type->is(JsonKind::kString)) return invalid_argument(place + " must be an object with a \"type\" string");
    if (i > 0) *out += "\n\n";
    if (type->text == "text") {
      std::string text;
      DSV4_RETURN_IF_ERROR(read_string(part, "text", place, &text));
      *out += text;
    } else {
      *out += "[Unsupported " + type->text + "]";
    }
  }
  return ok_status();
}

Status read_tool_call(const JsonValue& call, const std::string& where, ToolCall* out) {
  if (!call.is(JsonKind::kObject)) return must_be(where, "an object", call);
  DSV4_RETURN_IF_ERROR(read_string(call, "id", where, &out->id));
  const JsonValue* type = call.find("type");
  if (!absent(type) && type->text != "function") return invalid_argument(where + ".type must be \"function\"");
  const JsonValue* function = call.find("function");
  if (function == nullptr || !function->is(JsonKind::kObject)) return invalid_argument(where + ".function must be an object");
  DSV4_RETURN_IF_ERROR(read_string(*function, "name", where + ".function", &out->name));
  if (out->name.empty()) return invalid_argument(where + ".function.name must be a non-empty string");
  const JsonValue* arguments = function->find("arguments");
  if (arguments == nullptr) return invalid_argument(where + ".function.arguments is missing");
  if (arguments->is(JsonKind::kString))
    out->arguments = arguments->text;
  else if (arguments->is(JsonKind::kObject))
    out->arguments = to_python_json(*arguments);
  else
    return must_be(where + ".function.arguments", "a string with JSON, or an object", *arguments);
  return ok_status();
}

class MessageReader {
 public:
  MessageReader(const JsonValue& json, std::string where) : json_(json), where_(std::move(where)) {}

  Result<ChatMessage> read() {
    if (!json_.is(JsonKind::kObject)) return must_be(where_, "an object", json_);
    DSV4_RETURN_IF_ERROR(read_role());
    DSV4_RETURN_IF_ERROR(read_content(json_, where_, &message_.content));
    DSV4_RETURN_IF_ERROR(read_string(json_, "name", where_, &message_.name));
    if (!absent(json_.find("function_call"))) return invalid_argument(where_ + ".function_call is not supported: use tool_calls");
    const bool assistant = message_.role == ChatRole::kAssistant;
    const bool instructs = message_.role == ChatRole::kSystem || message_.role == ChatRole::kDeveloper;
    const bool asks = message_.role == ChatRole::kUser || message_.role == ChatRole::kDeveloper;
    DSV4_RETURN_IF_ERROR(only_with("reasoning_content", assistant, "assistant"));
    DSV4_RETURN_IF_ERROR(only_with("tool_calls", assistant, "assistant"));
    DSV4_RETURN_IF_ERROR(only_with("wo_eos", assistant, "assistant"));
    DSV4_RETURN_IF_ERROR(only_with("tool_call_id", message_.role == ChatRole::kTool, "tool"));
    DSV4_RETURN_IF_ERROR(only_with("tools", instructs, "system and developer"));
    DSV4_RETURN_IF_ERROR(only_with("response_format", instructs, "system and developer"));
    DSV4_RETURN_IF_ERROR(only_with("task", asks, "user and developer"));
    DSV4_RETURN_IF_ERROR(read_string(json_, "reasoning_content", where_, &message_.reasoning_content));
    DSV4_RETURN_IF_ERROR(read_string(json_, "tool_call_id", where_, &message_.tool_call_id));
    DSV4_RETURN_IF_ERROR(read_tool_calls());
    DSV4_RETURN_IF_ERROR(read_extras());
    if (message_.role == ChatRole::kDeveloper && message_.content.empty()) {
      return invalid_argument(where_ + ".content of a developer message must not be empty");
    }
    return std::move(message_);
  }

 private:
  Status read_role() {
    std::string role;
    DSV4_RETURN_IF_ERROR(read_string(json_, "role", where_, &role));
    for (const auto& [name, value] : kRoles) {
      if (name != role) continue;
      message_.role = value;
      return ok_status();
    }
    return invalid_argument(fmt::format("{}.role must be system, user, developer, assistant, tool or latest_reminder, is \"{}\"", where_, role));
  }

  Status only_with(const char* member, bool allowed, const char* roles) const {
    if (allowed || !is_truthy(json_.find(member))) return ok_status();
    return invalid_argument(fmt::format("{}.{} belongs to {} messages, not to the role {}", where_, member, roles, to_string(message_.role)));
  }

  Status read_tool_calls() {
    const JsonValue* calls = json_.find("tool_calls");
    if (absent(calls)) return ok_status();
    if (!calls->is(JsonKind::kArray)) return must_be(where_ + ".tool_calls", "an array", *calls);
    for (size_t i = 0; i < calls->items.size(); ++i) {
      DSV4_RETURN_IF_ERROR(read_tool_call(calls->items[i], fmt::format("{}.tool_calls[{}]", where_, i), &message_.tool_calls.emplace_back()));
    }
    return ok_status();
  }

  Status read_extras() {
    if (const JsonValue* task = json_.find("task"); !absent(task)) {
      std::string text;
      DSV4_RETURN_IF_ERROR(read_string(json_, "task", where_, &text));
      message_.task = std::move(text);
    }
    if (const JsonValue* wo_eos = json_.find("wo_eos"); !absent(wo_eos)) {
      if (!wo_eos->is_bool()) return must_be(where_ + ".wo_eos", "a boolean", *wo_eos);
      message_.without_eos = wo_eos->is(JsonKind::kTrue);
    }
    if (const JsonValue* tools = json_.find("tools"); !absent(tools)) {
      DSV4_ASSIGN_OR_RETURN(message_.tool_schemas, parse_tools(*tools, where_ + ".tools"));
    }
    const JsonValue* format = json_.find("response_format");
    if (is_truthy(format)) message_.response_format = to_python_json(*format);
    return ok_status();
  }

  const JsonValue& json_;
  const std::string where_;
  ChatMessage message_;
};

}  // namespace

std::string_view to_string(ChatRole role) {
  for (const auto& [name, value] : kRoles) {
    if (value == role) return name;
  }
  return "unknown";
}

Result<std::vector<ChatMessage>> parse_chat_messages(const JsonValue& messages) {
  if (!messages.is(JsonKind::kArray)) return must_be("messages", "an array", messages);
  if (messages.items.empty()) return invalid_argument("messages must not be empty");
  std::vector<ChatMessage> out;
  for (size_t i = 0; i < messages.items.size(); ++i) {
    DSV4_ASSIGN_OR_RETURN(ChatMessage message, MessageReader(messages.items[i], fmt::format("messages[{}]", i)).read());
    out.push_back(std::move(message));
  }
  return out;
}

Result<std::vector<ChatMessage>> parse_chat_messages(std::string_view json_text) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue json, read_json(json_text, "messages"));
  return parse_chat_messages(json);
}

Result<std::vector<std::string>> parse_tools(const JsonValue& tools, const std::string& where) {
  if (!tools.is(JsonKind::kArray)) return must_be(where, "an array", tools);
  std::vector<std::string> schemas;
  for (size_t i = 0; i < tools.items.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    const JsonValue& tool = tools.items[i];
    if (!tool.is(JsonKind::kObject)) return must_be(place, "an object", tool);
    const JsonValue* type = tool.find("type");
    if (!absent(type) && type->text != "function") return invalid_argument(place + ".type must be \"function\"");
    const JsonValue* function = tool.find("function");
    if (function == nullptr || !function->is(JsonKind::kObject)) return invalid_argument(place + ".function must be an object");
    std::string name;
    DSV4_RETURN_IF_ERROR(read_string(*function, "name", place + ".function", &name));
    if (name.empty()) return invalid_argument(place + ".function.name must be a non-empty string");
    schemas.push_back(to_python_json(*function));
  }
  return schemas;
}

void attach_request_tools(std::vector<std::string> tool_schemas, std::string response_format, std::vector<ChatMessage>* messages) {
  if (tool_schemas.empty() && response_format.empty()) return;
  if (messages->empty() || messages->front().role != ChatRole::kSystem) {
    ChatMessage system;
    system.role = ChatRole::kSystem;
    messages->insert(messages->begin(), std::move(system));
  }
  ChatMessage& system = messages->front();
  for (std::string& schema : tool_schemas) system.tool_schemas.push_back(std::move(schema));
  if (!response_format.empty()) system.response_format = std::move(response_format);
}

}  // namespace dsv4
