// The body of POST /v1/responses as a ChatSpec.
#include <limits>

#include <fmt/format.h>

#include "server/responses_api.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

// A string, or parts of text types.
std::string read_parts(FieldReader& f, const JsonValue& value, const std::string& where) {
  if (value.is(JsonKind::kString)) return value.text;
  if (!value.is(JsonKind::kArray)) return f.fail(where, fmt::format("must be a string or an array of parts, it is {}", value.kind_name())), "";
  std::string out;
  for (size_t i = 0; i < value.items.size(); ++i) {
    FieldReader p(value.items[i], fmt::format("{}[{}]", where, i));
    const std::string type = p.ok() ? p.string("type").value_or("") : "";
    if (p.ok() && type != "input_text" && type != "output_text" && type != "text" && type != "summary_text" && type != "reasoning_text" && type != "refusal") {
      p.fail("type", fmt::format("is \"{}\"; this model reads text only", type));
    }
    const std::string text = p.ok() ? p.string(type == "refusal" ? "refusal" : "text").value_or("") : "";
    if (p.ok()) p.ignore({"annotations", "logprobs"});
    if (p.ok()) p.finish();
    if (!p.ok()) return f.fail(p.error()), "";
    out += (i > 0 ? "\n\n" : "") + text;
  }
  return out;
}

class InputReader {
 public:
  InputReader(FieldReader& f, std::vector<ChatMessage>* out) : f_(f), out_(out) {}

  void read(const JsonValue& items) {
    for (size_t i = 0; i < items.items.size() && f_.ok(); ++i) read_item(items.items[i], fmt::format("input[{}]", i));
  }

 private:
  // The assistant message being put together: reasoning, text and calls that follow each other are one turn.
  ChatMessage& assistant() {
    if (out_->empty() || out_->back().role != ChatRole::kAssistant) {
      ChatMessage message;
      message.role = ChatRole::kAssistant;
      out_->push_back(std::move(message));
    }
    return out_->back();
  }

  void read_item(const JsonValue& item, const std::string& where) {
    FieldReader r(item, where);
    const std::string type = r.ok() ? r.string("type").value_or("message") : "";
    if (r.ok()) r.ignore({"id", "status"});
    if (type == "message") {
      read_message(r);
    } else if (type == "function_call") {
      ToolCall call;
      call.id = r.string("call_id").value_or("");
      call.name = r.string("name").value_or("");
      call.arguments = r.string("arguments").value_or("{}");
      if (r.ok() && call.name.empty()) r.fail("name", "must be a non-empty string");
      assistant().tool_calls.push_back(std::move(call));
    } else if (type == "function_call_output") {
      ChatMessage result;
      result.role = ChatRole::kTool;
      result.tool_call_id = r.string("call_id").value_or("");
      const JsonValue* output = r.value("output");
      if (r.ok() && output == nullptr) r.fail("output", "is missing");
      if (r.ok()) result.content = read_parts(r, *output, "output");
      out_->push_back(std::move(result));
    } else if (type == "reasoning") {
      if (const JsonValue* content = r.array("content")) assistant().reasoning_content += read_parts(r, *content, "content");
      r.ignore({"summary", "encrypted_content"});
    } else if (r.ok()) {
      r.fail("type", fmt::format("is \"{}\"; known are message, function_call, function_call_output and reasoning", type));
    }
    if (r.ok()) r.finish();
    if (!r.ok()) f_.fail(r.error());
  }

  void read_message(FieldReader& r) {
    const std::string role = r.string("role").value_or("");
    const JsonValue* content = r.value("content");
    if (r.ok() && content == nullptr) r.fail("content", "is missing");
    const std::string text = r.ok() ? read_parts(r, *content, "content") : "";
    r.ignore({"phase"});
    if (role == "assistant") {
      ChatMessage& message = assistant();
      message.content += (message.content.empty() ? "" : "\n\n") + text;
      return;
    }
    ChatMessage message;
    message.content = text;
    if (role == "user") {
      message.role = ChatRole::kUser;
    } else if (role == "system" || role == "developer") {
      message.role = ChatRole::kSystem;
    } else {
      r.fail("role", "must be user, assistant, system or developer, it is \"" + role + "\"");
    }
    out_->push_back(std::move(message));
  }

  FieldReader& f_;
  std::vector<ChatMessage>* const out_;
};

void read_tools(FieldReader& f, ChatSpec* spec) {
  const JsonValue* tools = f.array("tools");
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->items.size() && f.ok(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    FieldReader t(tools->items[i], where);
    const std::string type = t.ok() ? t.string("type").value_or("") : "";
    if (t.ok() && type != "function") t.fail("type", "is \"" + type + "\"; only functions can be called");
    JsonValue function{JsonKind::kObject, {}, {}, {}};
    for (const char* name : {"name", "description", "parameters", "strict"}) {
      const JsonValue* v = t.ok() ? t.value(name) : nullptr;
      if (v == nullptr) continue;
      function.names.push_back(name);
      function.items.push_back(*v);
    }
    if (t.ok()) t.finish();
    if (!t.ok()) return f.fail(t.error());
    if (auto tool = read_function(f, function, where)) spec->tools.push_back(std::move(*tool));
  }
}

void read_tool_choice(FieldReader& f, ChatSpec* spec) {
  const JsonValue* choice = f.value("tool_choice");
  if (choice == nullptr) return;
  if (choice->is(JsonKind::kObject)) {
    FieldReader c(*choice, "tool_choice");
    if (c.string("type").value_or("") != "function") c.fail("type", "must be function");
    spec->tool_choice = ToolChoice::kNamed;
    spec->named_tool = c.string("name").value_or("");
    c.finish();
    if (!c.ok()) f.fail(c.error());
  } else if (choice->text == "auto") {
    spec->tool_choice = ToolChoice::kAuto;
  } else if (choice->text == "none") {
    spec->tool_choice = ToolChoice::kNone;
  } else if (choice->text == "required") {
    spec->tool_choice = ToolChoice::kRequired;
  } else {
    f.fail("tool_choice", "must be auto, none, required or a function");
  }
}

}  // namespace

ApiResult<ResponsesRequest> read_responses_request(const JsonValue& body, const ApiRules& rules) {
  FieldReader f(body);
  if (!f.ok()) return f.error();
  ResponsesRequest out;
  out.echo = body;
  ChatSpec& spec = out.spec;
  spec.model = read_model(f, rules);
  if (const auto instructions = f.string("instructions")) {
    ChatMessage message;
    message.role = ChatRole::kSystem;
    message.content = *instructions;
    spec.messages.push_back(std::move(message));
  }
  const JsonValue* input = f.value("input");
  if (f.ok() && input == nullptr) f.fail("input", "is missing");
  if (f.ok() && input->is(JsonKind::kString)) {
    ChatMessage message;
    message.content = input->text;
    spec.messages.push_back(std::move(message));
  } else if (f.ok() && input->is(JsonKind::kArray) && !input->items.empty()) {
    InputReader(f, &spec.messages).read(*input);
  } else if (f.ok()) {
    f.fail("input", "must be a string or a non-empty array of items");
  }
  read_tools(f, &spec);
  read_tool_choice(f, &spec);
  spec.parallel_tool_calls = f.boolean("parallel_tool_calls").value_or(true);
  if (const JsonValue* text = f.object("text")) {
    FieldReader t(*text, "text");
    if (const JsonValue* format = t.object("format")) read_output_format(t, *format, "text.format", nullptr, &spec);
    t.ignore({"verbosity"});
    if (t.ok()) t.finish();
    if (!t.ok()) f.fail(t.error());
  }
  spec.thinking = rules.thinking.by_default;
  if (const JsonValue* reasoning = f.object("reasoning")) {
    FieldReader r(*reasoning, "reasoning");
    if (const auto effort = r.string("effort")) {
      const auto choice = effort_choice(*effort, rules.thinking);
      if (!choice) r.fail("effort", "is \"" + *effort + "\", which this model does not know");
      if (choice) {
        spec.thinking = choice->thinking;
        spec.effort = choice->effort;
      }
    }
    r.ignore({"summary", "generate_summary"});
    if (r.ok()) r.finish();
    if (!r.ok()) f.fail(r.error());
  }
  spec.max_tokens = f.integer("max_output_tokens", 1, std::numeric_limits<int32_t>::max());
  spec.sampling = read_sampling(f, rules.sampling);
  if (const auto top = f.integer("top_logprobs", 0, 20)) spec.num_logprobs = static_cast<int>(*top);
  spec.stream = f.boolean("stream").value_or(false);
  if (f.boolean("background").value_or(false)) f.fail("background", "is not possible: this server stores nothing");
  f.refuse("previous_response_id", "is not possible: this server stores nothing; send the whole conversation as input");
  f.refuse("conversation", "is not possible: this server stores nothing; send the whole conversation as input");
  f.refuse("prompt", "is not possible: this server stores nothing");
  f.ignore({"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "include", "truncation",
            "stream_options", "max_tool_calls"});
  f.finish();
  if (!f.ok()) return f.error();
  if (spec.messages.empty()) return ApiError{.message = "input holds no messages", .param = "input"};
  if (const auto fault = cross_check(spec)) return *fault;
  return out;
}

}  // namespace dsv4
