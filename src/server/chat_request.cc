#include "server/chat_request.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "text/python_json.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxTools = 256;
constexpr size_t kMaxNameBytes = 128;

void read_tools(FieldReader& f, ChatSpec* spec) {
  const JsonValue* tools = f.array("tools");
  if (tools == nullptr) return;
  if (tools->items.size() > kMaxTools) return f.fail("tools", fmt::format("has {} tools, at most {} are taken", tools->items.size(), kMaxTools));
  for (size_t i = 0; i < tools->items.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    FieldReader t(tools->items[i], where);
    const auto type = t.string("type");
    if (t.ok() && type.value_or("function") != "function") t.fail("type", "is \"" + *type + "\"; only functions can be called");
    const JsonValue* function = t.ok() ? t.object("function") : nullptr;
    if (t.ok() && function == nullptr) t.fail("function", "is missing");
    if (t.ok()) t.ignore({"cache_control"});
    if (t.ok()) t.finish();
    if (!t.ok()) return f.fail(t.error());
    if (auto tool = read_function(f, *function, where + ".function")) spec->tools.push_back(std::move(*tool));
  }
}

void read_tool_choice(FieldReader& f, ChatSpec* spec) {
  const JsonValue* choice = f.value("tool_choice");
  if (choice == nullptr) return;
  if (choice->is(JsonKind::kString)) {
    if (choice->text == "none") {
      spec->tool_choice = ToolChoice::kNone;
    } else if (choice->text == "auto") {
      spec->tool_choice = ToolChoice::kAuto;
    } else if (choice->text == "required") {
      spec->tool_choice = ToolChoice::kRequired;
    } else {
      f.fail("tool_choice", "must be none, auto, required or a function, it is \"" + choice->text + "\"");
    }
    return;
  }
  FieldReader c(*choice, "tool_choice");
  if (c.ok() && c.string("type").value_or("") != "function") c.fail("type", "must be \"function\"");
  const JsonValue* function = c.ok() ? c.object("function") : nullptr;
  if (c.ok() && function == nullptr) c.fail("function", "is missing");
  if (c.ok()) {
    FieldReader n(*function, "tool_choice.function");
    spec->tool_choice = ToolChoice::kNamed;
    spec->named_tool = n.string("name").value_or("");
    n.finish();
    if (!n.ok()) c.fail(n.error());
  }
  if (c.ok()) c.finish();
  if (!c.ok()) f.fail(c.error());
}

void read_stream_options(FieldReader& f, ChatSpec* spec) {
  const JsonValue* options = f.object("stream_options");
  if (options == nullptr) return;
  if (!spec->stream) return f.fail("stream_options", "is only for streams: set stream to true");
  FieldReader o(*options, "stream_options");
  spec->stream_usage = o.boolean("include_usage").value_or(false);
  o.ignore({"include_obfuscation"});
  o.finish();
  if (!o.ok()) f.fail(o.error());
}

}  // namespace

std::string read_model(FieldReader& f, const ApiRules& rules) {
  const std::string& own = rules.model_names.front();
  const std::string name = f.string("model").value_or(own);
  if (!rules.any_model_name && std::find(rules.model_names.begin(), rules.model_names.end(), name) == rules.model_names.end()) {
    f.fail(ApiError{.status = 404,
                    .message = fmt::format("the model \"{}\" does not exist here; this server runs \"{}\"", name, own),
                    .param = "model",
                    .code = "model_not_found"});
  }
  return name;
}

std::optional<ToolSpec> read_function(FieldReader& f, const JsonValue& function, const std::string& where) {
  FieldReader r(function, where);
  ToolSpec tool;
  tool.name = r.string("name").value_or("");
  r.string("description");
  if (const JsonValue* parameters = r.object("parameters")) tool.parameters = *parameters;
  r.boolean("strict");  // arguments of a forced call follow their schema in any case
  r.finish();
  if (r.ok() && (tool.name.empty() || tool.name.size() > kMaxNameBytes || tool.name.find_first_of("\"<>\n\r") != std::string::npos)) {
    r.fail("name", fmt::format("must be a name of 1 to {} bytes without quotes, angle brackets and line ends", kMaxNameBytes));
  }
  if (!r.ok()) return f.fail(r.error()), std::nullopt;
  tool.schema_text = to_python_json(function);
  return tool;
}

void read_output_format(FieldReader& f, const JsonValue& format, const std::string& where, const char* schema_holder, ChatSpec* out) {
  FieldReader r(format, where);
  const std::string type = r.string("type").value_or("");
  if (!r.ok()) return f.fail(r.error());
  if (type == "text") {
    out->format = OutputFormat::kText;
  } else if (type == "json_object") {
    out->format = OutputFormat::kJsonObject;
  } else if (type == "json_schema") {
    out->format = OutputFormat::kJsonSchema;
    const JsonValue* holder = schema_holder == nullptr ? &format : r.object(schema_holder);
    if (r.ok() && holder == nullptr) r.fail(schema_holder, "is missing");
    if (r.ok()) {
      FieldReader h(*holder, schema_holder == nullptr ? where : where + "." + schema_holder);
      h.ignore({"type"});
      h.string("name");
      h.string("description");
      h.boolean("strict");  // the answer follows the schema in any case
      const JsonValue* schema = h.value("schema");
      if (h.ok() && (schema == nullptr || !(schema->is(JsonKind::kObject) || schema->is_bool()))) h.fail("schema", "must be a JSON schema");
      h.finish();
      if (!h.ok()) return f.fail(h.error());
      out->schema = *schema;
    }
    if (schema_holder == nullptr) r.ignore({"name", "description", "strict", "schema"});
  } else {
    r.fail("type", "must be text, json_object or json_schema, it is \"" + type + "\"");
  }
  r.finish();
  if (!r.ok()) f.fail(r.error());
}

std::optional<ApiError> unreadable_part(const JsonValue& messages) {
  if (!messages.is(JsonKind::kArray)) return std::nullopt;
  for (size_t i = 0; i < messages.items.size(); ++i) {
    const JsonValue* content = messages.items[i].find("content");
    if (content == nullptr || !content->is(JsonKind::kArray)) continue;
    for (size_t j = 0; j < content->items.size(); ++j) {
      const JsonValue* type = content->items[j].find("type");
      if (type == nullptr || !type->is(JsonKind::kString) || type->text == "text") continue;
      const std::string where = fmt::format("messages[{}].content[{}]", i, j);
      return ApiError{.status = 400,
                      .message = fmt::format("{} is of type \"{}\"; this model reads text only", where, type->text),
                      .param = where,
                      .code = "unsupported_content"};
    }
  }
  return std::nullopt;
}

std::optional<ApiError> cross_check(const ChatSpec& spec) {
  const auto fault = [](const std::string& param, const std::string& message) { return ApiError{.status = 400, .message = message, .param = param}; };
  for (size_t i = 0; i < spec.tools.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (spec.tools[i].name == spec.tools[j].name) return fault("tools", fmt::format("tools names the function \"{}\" twice", spec.tools[i].name));
    }
  }
  const bool forced = spec.tool_choice == ToolChoice::kRequired || spec.tool_choice == ToolChoice::kNamed;
  if (forced && spec.tools.empty()) return fault("tool_choice", "tool_choice asks for a call, but tools is empty");
  if (spec.tool_choice == ToolChoice::kNamed &&
      std::none_of(spec.tools.begin(), spec.tools.end(), [&](const ToolSpec& t) { return t.name == spec.named_tool; })) {
    return fault("tool_choice", fmt::format("tool_choice names the function \"{}\", which tools does not have", spec.named_tool));
  }
  if (forced && spec.format != OutputFormat::kText)
    return fault("tool_choice", "tool_choice forces a call, response_format asks for JSON: only one is possible");
  if (spec.ignore_eos && (forced || spec.format != OutputFormat::kText))
    return fault("ignore_eos", "ignore_eos is not possible with an answer of a given form: it has an end");
  return std::nullopt;
}

ApiResult<ChatSpec> read_chat_request(const JsonValue& body, const ApiRules& rules) {
  FieldReader f(body);
  if (!f.ok()) return f.error();
  ChatSpec spec;
  spec.model = read_model(f, rules);

  const JsonValue* messages = f.array("messages");
  if (f.ok() && messages == nullptr) f.fail("messages", "is missing");
  if (!f.ok()) return f.error();
  if (const auto fault = unreadable_part(*messages)) return *fault;
  auto parsed = parse_chat_messages(*messages);
  if (!parsed.ok()) return ApiError{.status = 400, .message = parsed.status().message(), .param = "messages"};
  spec.messages = std::move(*parsed);
  for (ChatMessage& message : spec.messages) {
    if (message.role == ChatRole::kDeveloper) message.role = ChatRole::kSystem;  // OpenAI's newer word for it
  }

  read_tools(f, &spec);
  read_tool_choice(f, &spec);
  spec.parallel_tool_calls = f.boolean("parallel_tool_calls").value_or(true);
  if (const JsonValue* format = f.object("response_format")) read_output_format(f, *format, "response_format", "json_schema", &spec);
  const ThinkingChoice thinking = read_thinking(f, rules.thinking);
  spec.thinking = thinking.thinking;
  spec.effort = thinking.effort;

  spec.sampling = read_sampling(f, rules.sampling);
  spec.sampling.logit_bias = read_logit_bias(f, rules.vocab_size);
  spec.stop = read_stop(f, "stop");
  spec.ignore_eos = f.boolean("ignore_eos").value_or(false);
  const int64_t limit = std::numeric_limits<int32_t>::max();
  const auto max_tokens = f.integer("max_tokens", 1, limit), max_completion = f.integer("max_completion_tokens", 1, limit);
  if (max_tokens && max_completion && *max_tokens != *max_completion) {
    f.fail("max_tokens", fmt::format("is {} and max_completion_tokens is {}: they mean the same and must agree", *max_tokens, *max_completion));
  }
  spec.max_tokens = max_tokens ? max_tokens : max_completion;
  spec.n = static_cast<int>(f.integer("n", 1, rules.max_choices).value_or(1));
  const bool logprobs = f.boolean("logprobs").value_or(false);
  const auto top_logprobs = f.integer("top_logprobs", 0, 20);
  if (top_logprobs && !logprobs) f.fail("top_logprobs", "needs logprobs to be true");
  if (logprobs) spec.num_logprobs = static_cast<int>(top_logprobs.value_or(0));
  spec.stream = f.boolean("stream").value_or(false);
  read_stream_options(f, &spec);

  if (const JsonValue* modalities = f.array("modalities")) {
    if (modalities->items.size() != 1 || modalities->items[0].text != "text") f.fail("modalities", "must be [\"text\"]");
  }
  f.ignore({"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prediction", "verbosity"});
  f.refuse("functions", "is the old form of tools, which is not taken");
  f.refuse("function_call", "is the old form of tool_choice, which is not taken");
  f.refuse("audio", "is not possible: this model writes text");
  f.refuse("web_search_options", "is not possible: this server searches nothing");
  f.finish();
  if (!f.ok()) return f.error();
  if (const auto fault = cross_check(spec)) return *fault;
  return spec;
}

}  // namespace dsv4
