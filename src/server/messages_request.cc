// The body of POST /v1/messages as a ChatSpec.
#include <limits>

#include <fmt/format.h>

#include "server/messages_api.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

// A string, or text blocks joined by empty lines.
std::string read_text(FieldReader& f, const JsonValue& value, const std::string& where) {
  if (value.is(JsonKind::kString)) return value.text;
  if (!value.is(JsonKind::kArray)) return f.fail(where, fmt::format("must be a string or an array of blocks, it is {}", value.kind_name())), "";
  std::string out;
  for (size_t i = 0; i < value.items.size(); ++i) {
    FieldReader b(value.items[i], fmt::format("{}[{}]", where, i));
    const std::string type = b.ok() ? b.string("type").value_or("") : "";
    if (b.ok() && type != "text") b.fail("type", fmt::format("is \"{}\"; this model reads text only", type));
    const std::string text = b.ok() ? b.string("text").value_or("") : "";
    if (b.ok()) b.ignore({"cache_control", "citations"});
    if (b.ok()) b.finish();
    if (!b.ok()) return f.fail(b.error()), "";
    out += (i > 0 ? "\n\n" : "") + text;
  }
  return out;
}

class MessagesReader {
 public:
  MessagesReader(FieldReader& f, std::vector<ChatMessage>* out) : f_(f), out_(out) {}

  void read(const JsonValue& messages) {
    for (size_t i = 0; i < messages.items.size() && f_.ok(); ++i) {
      where_ = fmt::format("messages[{}]", i);
      FieldReader m(messages.items[i], where_);
      const std::string role = m.ok() ? m.string("role").value_or("") : "";
      const JsonValue* content = m.ok() ? m.value("content") : nullptr;
      if (m.ok() && role != "user" && role != "assistant" && role != "system") m.fail("role", "must be user or assistant, it is \"" + role + "\"");
      if (m.ok() && content == nullptr) m.fail("content", "is missing");
      if (m.ok()) m.finish();
      if (!m.ok()) return f_.fail(m.error());
      if (role == "assistant") {
        read_assistant(*content);
      } else {
        read_user(*content, role == "system" ? ChatRole::kSystem : ChatRole::kUser);
      }
    }
  }

 private:
  void read_user(const JsonValue& content, ChatRole role) {
    std::string text;
    bool has_text = content.is(JsonKind::kString);
    if (has_text) text = content.text;
    if (content.is(JsonKind::kArray)) {
      for (size_t j = 0; j < content.items.size() && f_.ok(); ++j) {
        FieldReader b(content.items[j], fmt::format("{}.content[{}]", where_, j));
        const std::string type = b.ok() ? b.string("type").value_or("") : "";
        if (type == "text") {
          text += (has_text ? "\n\n" : "") + b.string("text").value_or("");
          has_text = true;
          b.ignore({"cache_control", "citations"});
        } else if (type == "tool_result" && role == ChatRole::kUser) {
          ChatMessage result;
          result.role = ChatRole::kTool;
          result.tool_call_id = b.string("tool_use_id").value_or("");
          if (const JsonValue* inner = b.value("content")) result.content = read_text(b, *inner, "content");
          if (b.boolean("is_error").value_or(false)) result.content = "Error: " + result.content;
          b.ignore({"cache_control"});
          out_->push_back(std::move(result));
        } else if (b.ok()) {
          b.fail("type", fmt::format("is \"{}\"; this model reads text and tool results", type));
        }
        if (b.ok()) b.finish();
        if (!b.ok()) f_.fail(b.error());
      }
    } else if (!has_text) {
      f_.fail(where_ + ".content", "must be a string or an array of blocks");
    }
    if (!has_text) return;
    ChatMessage message;
    message.role = role;
    message.content = std::move(text);
    out_->push_back(std::move(message));
  }

  void read_assistant(const JsonValue& content) {
    ChatMessage message;
    message.role = ChatRole::kAssistant;
    if (content.is(JsonKind::kString)) {
      message.content = content.text;
    } else if (content.is(JsonKind::kArray)) {
      for (size_t j = 0; j < content.items.size() && f_.ok(); ++j) {
        FieldReader b(content.items[j], fmt::format("{}.content[{}]", where_, j));
        const std::string type = b.ok() ? b.string("type").value_or("") : "";
        if (type == "text") {
          message.content += (message.content.empty() ? "" : "\n\n") + b.string("text").value_or("");
          b.ignore({"cache_control", "citations"});
        } else if (type == "thinking") {
          message.reasoning_content += b.string("thinking").value_or("");
          b.ignore({"signature", "cache_control"});
        } else if (type == "redacted_thinking") {
          b.ignore({"data", "cache_control"});
        } else if (type == "tool_use") {
          ToolCall call;
          call.id = b.string("id").value_or("");
          call.name = b.string("name").value_or("");
          const JsonValue* input = b.object("input");
          call.arguments = input == nullptr ? "{}" : to_python_json(*input);
          b.ignore({"cache_control", "caller"});
          if (b.ok() && call.name.empty()) b.fail("name", "must be a non-empty string");
          message.tool_calls.push_back(std::move(call));
        } else if (b.ok()) {
          b.fail("type", fmt::format("is \"{}\"; known are text, thinking and tool_use", type));
        }
        if (b.ok()) b.finish();
        if (!b.ok()) f_.fail(b.error());
      }
    } else {
      f_.fail(where_ + ".content", "must be a string or an array of blocks");
    }
    out_->push_back(std::move(message));
  }

  FieldReader& f_;
  std::vector<ChatMessage>* const out_;
  std::string where_;
};

void read_tools(FieldReader& f, ChatSpec* spec) {
  const JsonValue* tools = f.array("tools");
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->items.size() && f.ok(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    FieldReader t(tools->items[i], where);
    const std::string type = t.ok() ? t.string("type").value_or("custom") : "";
    if (t.ok() && type != "custom") t.fail("type", "is \"" + type + "\"; this server runs no tools of its own");
    if (t.ok()) t.ignore({"cache_control", "strict", "defer_loading", "input_examples", "eager_input_streaming", "allowed_callers"});
    // The same as a function of the OpenAI form, which the prompt shows.
    JsonValue function{JsonKind::kObject, {}, {}, {}};
    for (const auto& [own, shown] : {std::pair<const char*, const char*>{"name", "name"}, {"description", "description"}, {"input_schema", "parameters"}}) {
      const JsonValue* v = t.ok() ? t.value(own) : nullptr;
      if (v == nullptr) continue;
      function.names.push_back(shown);
      function.items.push_back(*v);
    }
    if (t.ok()) t.finish();
    if (!t.ok()) return f.fail(t.error());
    if (auto tool = read_function(f, function, where)) spec->tools.push_back(std::move(*tool));
  }
}

void read_tool_choice(FieldReader& f, ChatSpec* spec) {
  const JsonValue* choice = f.object("tool_choice");
  if (choice == nullptr) return;
  FieldReader c(*choice, "tool_choice");
  const std::string type = c.string("type").value_or("");
  if (type == "auto") {
    spec->tool_choice = ToolChoice::kAuto;
  } else if (type == "any") {
    spec->tool_choice = ToolChoice::kRequired;
  } else if (type == "none") {
    spec->tool_choice = ToolChoice::kNone;
  } else if (type == "tool") {
    spec->tool_choice = ToolChoice::kNamed;
    spec->named_tool = c.string("name").value_or("");
  } else {
    c.fail("type", "must be auto, any, tool or none, it is \"" + type + "\"");
  }
  spec->parallel_tool_calls = !c.boolean("disable_parallel_tool_use").value_or(false);
  c.finish();
  if (!c.ok()) f.fail(c.error());
}

void read_thinking_and_effort(FieldReader& f, const ThinkingRules& rules, ChatSpec* spec) {
  ThinkingChoice choice{rules.by_default, ""};
  if (const JsonValue* config = f.object("output_config")) {
    FieldReader c(*config, "output_config");
    if (const auto effort = c.string("effort")) {
      const auto known = effort_choice(*effort, rules);
      if (!known) c.fail("effort", "is \"" + *effort + "\", which this model does not know");
      if (known) choice.effort = known->effort;
    }
    if (const JsonValue* format = c.object("format")) read_output_format(c, *format, "output_config.format", nullptr, spec);
    if (c.ok()) c.finish();
    if (!c.ok()) f.fail(c.error());
  }
  if (const JsonValue* thinking = f.object("thinking")) {
    FieldReader t(*thinking, "thinking");
    const std::string type = t.string("type").value_or("");
    if (type != "enabled" && type != "disabled" && type != "adaptive") t.fail("type", "must be enabled, adaptive or disabled, it is \"" + type + "\"");
    t.ignore({"budget_tokens", "display"});
    t.finish();
    if (!t.ok()) f.fail(t.error());
    choice.thinking = type != "disabled";
  }
  spec->thinking = choice.thinking;
  if (choice.thinking) spec->effort = choice.effort;
}

}  // namespace

ApiResult<ChatSpec> read_messages_request(const JsonValue& body, const ApiRules& rules, bool needs_max_tokens) {
  FieldReader f(body);
  if (!f.ok()) return f.error();
  ChatSpec spec;
  spec.model = read_model(f, rules);
  if (const JsonValue* system = f.value("system")) {
    ChatMessage message;
    message.role = ChatRole::kSystem;
    message.content = read_text(f, *system, "system");
    spec.messages.push_back(std::move(message));
  }
  const JsonValue* list = f.array("messages");
  if (f.ok() && (list == nullptr || list->items.empty())) f.fail("messages", "must be a non-empty array");
  if (f.ok()) MessagesReader(f, &spec.messages).read(*list);
  read_tools(f, &spec);
  read_tool_choice(f, &spec);
  read_thinking_and_effort(f, rules.thinking, &spec);
  spec.max_tokens = f.integer("max_tokens", 1, std::numeric_limits<int32_t>::max());
  if (f.ok() && needs_max_tokens && !spec.max_tokens) f.fail("max_tokens", "is missing");
  spec.sampling = read_sampling(f, rules.sampling);
  spec.stop = read_stop(f, "stop_sequences");
  spec.stream = f.boolean("stream").value_or(false);
  f.ignore({"metadata", "service_tier", "context_management", "cache_control", "inference_geo", "speed"});
  f.refuse("container", "is not possible: this server runs no tools of its own");
  f.refuse("mcp_servers", "is not possible: this server runs no tools of its own");
  f.finish();
  if (!f.ok()) return f.error();
  if (spec.messages.empty()) return ApiError{.message = "messages hold no text", .param = "messages"};
  if (const auto fault = cross_check(spec)) return *fault;
  return spec;
}

}  // namespace dsv4
