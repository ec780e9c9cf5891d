#include "server/responses_api.h"

#include <ctime>

#include "server/json_text.h"
#include "server/openai_parts.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

// A field of the request as the response repeats it.
Json echo(const ResponsesRequest& request, const char* name, Json otherwise) {
  const JsonValue* v = request.echo.find(name);
  if (v == nullptr || v->is(JsonKind::kNull)) return otherwise;
  return Json::parse(to_python_json(*v), nullptr, false);
}

Json usage_of(const AnswerUsage& usage) {
  Json out;
  out["input_tokens"] = usage.prompt_tokens;
  out["input_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  out["output_tokens"] = usage.completion_tokens;
  out["output_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  return out;
}

Json response_json(const Service& service, const ResponsesRequest& request) {
  Json out;
  out["id"] = new_call_id("resp_");
  out["object"] = "response";
  out["created_at"] = static_cast<int64_t>(std::time(nullptr));
  out["status"] = "in_progress";
  out["error"] = nullptr;
  out["incomplete_details"] = nullptr;
  out["instructions"] = echo(request, "instructions", nullptr);
  out["max_output_tokens"] = echo(request, "max_output_tokens", nullptr);
  out["model"] = service.model_name();
  out["output"] = Json::array();
  out["parallel_tool_calls"] = request.spec.parallel_tool_calls;
  out["previous_response_id"] = nullptr;
  out["reasoning"] = echo(request, "reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  out["store"] = false;
  out["temperature"] = request.spec.sampling.temperature;
  out["text"] = echo(request, "text", {{"format", {{"type", "text"}}}});
  out["tool_choice"] = echo(request, "tool_choice", "auto");
  out["tools"] = echo(request, "tools", Json::array());
  out["top_p"] = request.spec.sampling.top_p;
  out["truncation"] = "disabled";
  out["usage"] = nullptr;
  out["metadata"] = echo(request, "metadata", Json::object());
  return out;
}

// An answer as output items, one after the other; `emit` sees each event of the stream form.
class Items {
 public:
  Items(bool with_logprobs, std::function<void(const char* type, Json event)> emit) : with_logprobs_(with_logprobs), emit_(std::move(emit)) {}

  void take(const AnswerEvent& event) {
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning: return text(Kind::kReasoning, event);
      case AnswerEvent::Kind::kContent: return text(Kind::kMessage, event);
      case AnswerEvent::Kind::kToolStart:
        return open(Kind::kCall, {{"id", new_call_id("fc_")},
                                  {"type", "function_call"},
                                  {"status", "in_progress"},
                                  {"call_id", event.tool_id},
                                  {"name", event.text},
                                  {"arguments", ""}});
      case AnswerEvent::Kind::kToolArguments: text_ += event.text; return emit("response.function_call_arguments.delta", false, {{"delta", event.text}});
      case AnswerEvent::Kind::kToolEnd: return close("completed");
      case AnswerEvent::Kind::kEnd: return close(event.finish == "length" ? "incomplete" : "completed");
    }
  }

  Json list = Json::array();

 private:
  enum class Kind { kNone, kReasoning, kMessage, kCall };

  void text(Kind kind, const AnswerEvent& event) {
    if (kind_ != kind) {
      const bool message = kind == Kind::kMessage;
      Json item;
      item["id"] = new_call_id(message ? "msg_" : "rs_");
      item["type"] = message ? "message" : "reasoning";
      item["status"] = "in_progress";
      if (message) {
        item["role"] = "assistant";
      } else {
        item["summary"] = Json::array();
      }
      item["content"] = Json::array();
      open(kind, std::move(item));
      emit("response.content_part.added", true, {{"part", part()}});
    }
    text_ += event.text;
    Json logprobs = Json::array();
    if (with_logprobs_ && kind == Kind::kMessage) {
      logprobs = chat_logprobs_json(event.logprobs)["content"];
      for (const Json& entry : logprobs) logprobs_.push_back(entry);
    }
    Json delta;
    delta["delta"] = event.text;
    if (kind == Kind::kMessage) delta["logprobs"] = std::move(logprobs);
    emit(kind == Kind::kMessage ? "response.output_text.delta" : "response.reasoning_text.delta", true, std::move(delta));
  }

  Json part() const {
    Json out;
    if (kind_ == Kind::kMessage) {
      out["type"] = "output_text";
      out["text"] = text_;
      out["annotations"] = Json::array();
      out["logprobs"] = logprobs_;
    } else {
      out["type"] = "reasoning_text";
      out["text"] = text_;
    }
    return out;
  }

  void open(Kind kind, Json item) {
    close("completed");
    kind_ = kind;
    text_.clear();
    logprobs_ = Json::array();
    list.push_back(std::move(item));
    Json event;
    event["output_index"] = list.size() - 1;
    event["item"] = list.back();
    emit_("response.output_item.added", std::move(event));
  }

  void close(const char* status) {
    if (kind_ == Kind::kNone) return;
    Json& item = list.back();
    if (kind_ == Kind::kCall) {
      item["arguments"] = text_;
      emit("response.function_call_arguments.done", false, {{"name", item["name"]}, {"arguments", text_}});
    } else {
      Json done;
      done["text"] = text_;
      if (kind_ == Kind::kMessage) done["logprobs"] = logprobs_;
      emit(kind_ == Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done", true, std::move(done));
      emit("response.content_part.done", true, {{"part", part()}});
      item["content"] = Json::array({part()});
    }
    item["status"] = status;
    Json event;
    event["output_index"] = list.size() - 1;
    event["item"] = item;
    emit_("response.output_item.done", std::move(event));
    kind_ = Kind::kNone;
  }

  void emit(const char* type, bool with_part, Json more) {
    Json event;
    event["item_id"] = list.back()["id"];
    event["output_index"] = list.size() - 1;
    if (with_part) event["content_index"] = 0;
    for (auto& [name, value] : more.items()) event[name] = std::move(value);
    emit_(type, std::move(event));
  }

  const bool with_logprobs_;
  const std::function<void(const char*, Json)> emit_;
  Kind kind_ = Kind::kNone;
  std::string text_;
  Json logprobs_ = Json::array();
};

// The response's last form. Its event's name comes back.
const char* complete(const AnswerEvent& end, Json items, Json* response) {
  (*response)["output"] = std::move(items);
  (*response)["usage"] = usage_of(end.usage);
  if (end.error) {
    (*response)["status"] = "failed";
    (*response)["error"] = {{"code", "server_error"}, {"message", end.error->message}};
    return "response.failed";
  }
  if (end.finish == "length") {
    (*response)["status"] = "incomplete";
    (*response)["incomplete_details"] = {{"reason", "max_output_tokens"}};
    return "response.incomplete";
  }
  (*response)["status"] = "completed";
  return "response.completed";
}

HttpReply whole(const Service& service, const HttpRequest& http, const ResponsesRequest& request, Run run) {
  Items items(request.spec.num_logprobs >= 0, [](const char*, Json) {});
  AnswerEvent end;
  const bool all = run.drive({.peer_gone = http.peer_gone, .on_event = [&](size_t, AnswerEvent event) {
                                items.take(event);
                                if (event.kind == AnswerEvent::Kind::kEnd) end = std::move(event);
                              }});
  if (!all) return error_reply({.status = 499, .message = "the client left"}, ApiStyle::kOpenAi);
  if (end.error) return error_reply(*end.error, ApiStyle::kOpenAi);
  Json response = response_json(service, request);
  complete(end, std::move(items.list), &response);
  HttpReply reply;
  reply.body = to_text(response);
  return reply;
}

void stream_out(const Service& service, const ResponsesRequest& request, Run& run, StreamWriter& writer) {
  int64_t number = 0;
  const auto emit = [&](const char* type, Json event) {
    Json out;
    out["type"] = type;
    out["sequence_number"] = number++;
    for (auto& [name, value] : event.items()) out[name] = std::move(value);
    writer.write(sse_event(type, out));
  };
  Json response = response_json(service, request);
  emit("response.created", {{"response", response}});
  emit("response.in_progress", {{"response", response}});
  Items items(request.spec.num_logprobs >= 0, emit);
  run.drive({.stream = &writer,
             .on_event =
                 [&](size_t, AnswerEvent event) {
                   items.take(event);
                   if (event.kind != AnswerEvent::Kind::kEnd) return;
                   const char* type = complete(event, items.list, &response);
                   emit(type, {{"response", response}});
                 },
             .on_silence = [&] { writer.write(": still here\n\n"); }});
}

}  // namespace

HttpReply responses(const Service& service, const HttpRequest& request) {
  const auto body = read_json(request.body, "body");
  if (!body.ok()) return error_reply(api_error(body.status()), ApiStyle::kOpenAi);
  auto read = read_responses_request(*body, service.rules());
  if (!read.ok()) return error_reply(read.error(), ApiStyle::kOpenAi);
  const auto own = std::make_shared<ResponsesRequest>(std::move(*read));
  auto run = service.start(own->spec, request.peer_gone);
  if (!run.ok()) return error_reply(run.error(), ApiStyle::kOpenAi);
  if (!own->spec.stream) return whole(service, request, *own, std::move(*run));
  HttpReply reply;
  reply.content_type = "text/event-stream";
  reply.stream = [&service, own, run = std::make_shared<Run>(std::move(*run))](StreamWriter& writer) { stream_out(service, *own, *run, writer); };
  return reply;
}

}  // namespace dsv4
