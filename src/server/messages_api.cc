#include "server/messages_api.h"

#include "server/json_text.h"

namespace dsv4 {
namespace {

const char* stop_reason(const AnswerEvent& end) {
  if (end.finish == "tool_calls") return "tool_use";
  if (end.finish == "length") return "max_tokens";
  return end.stop_text.empty() ? "end_turn" : "stop_sequence";
}

Json usage_json(const AnswerUsage& usage) {
  Json out;
  out["input_tokens"] = usage.prompt_tokens - usage.cached_tokens;  // there, those that were computed
  out["cache_read_input_tokens"] = usage.cached_tokens;
  out["cache_creation_input_tokens"] = 0;
  out["output_tokens"] = usage.completion_tokens;
  return out;
}

Json message_json(const Service& service, const std::string& id) {
  Json out;
  out["id"] = id;
  out["type"] = "message";
  out["role"] = "assistant";
  out["model"] = service.model_name();
  out["content"] = Json::array();
  out["stop_reason"] = nullptr;
  out["stop_sequence"] = nullptr;
  out["usage"] = usage_json({});
  return out;
}

// An answer as content blocks, one after the other; `emit` sees each event of the stream form.
class Blocks {
 public:
  explicit Blocks(std::function<void(const char* name, Json event)> emit) : emit_(std::move(emit)) {}

  void take(const AnswerEvent& event) {
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning: return text(event.text, "thinking", "thinking_delta");
      case AnswerEvent::Kind::kContent: return text(event.text, "text", "text_delta");
      case AnswerEvent::Kind::kToolStart: return open({{"type", "tool_use"}, {"id", new_call_id("toolu_")}, {"name", event.text}, {"input", Json::object()}});
      case AnswerEvent::Kind::kToolArguments: arguments_ += event.text; return delta({{"type", "input_json_delta"}, {"partial_json", event.text}});
      case AnswerEvent::Kind::kToolEnd:
      case AnswerEvent::Kind::kEnd: return close();
    }
  }

  Json list = Json::array();

 private:
  void text(const std::string& piece, const char* kind, const char* delta_kind) {
    if (!open_ || list.back()["type"] != kind) {
      Json block;
      block["type"] = kind;
      block[kind] = "";
      if (block["type"] == "thinking") block["signature"] = "";
      open(std::move(block));
    }
    list.back()[kind].get_ref<std::string&>() += piece;
    Json d;
    d["type"] = delta_kind;
    d[kind] = piece;
    delta(std::move(d));
  }

  void open(Json block) {
    close();
    open_ = true;
    arguments_.clear();
    list.push_back(block);
    emit_("content_block_start", {{"type", "content_block_start"}, {"index", list.size() - 1}, {"content_block", std::move(block)}});
  }

  void delta(Json d) { emit_("content_block_delta", {{"type", "content_block_delta"}, {"index", list.size() - 1}, {"delta", std::move(d)}}); }

  void close() {
    if (!open_) return;
    open_ = false;
    if (list.back()["type"] == "tool_use") {
      Json input = Json::parse(arguments_, nullptr, false);
      list.back()["input"] = input.is_object() ? std::move(input) : Json::object();  // an answer cut short inside a call
    }
    emit_("content_block_stop", {{"type", "content_block_stop"}, {"index", list.size() - 1}});
  }

  const std::function<void(const char*, Json)> emit_;
  std::string arguments_;
  bool open_ = false;
};

HttpReply whole(const Service& service, const HttpRequest& request, Run run) {
  Blocks blocks([](const char*, Json) {});
  AnswerEvent end;
  const bool complete = run.drive({.peer_gone = request.peer_gone, .on_event = [&](size_t, AnswerEvent event) {
                                     blocks.take(event);
                                     if (event.kind == AnswerEvent::Kind::kEnd) end = std::move(event);
                                   }});
  if (!complete) return error_reply({.status = 499, .message = "the client left"}, ApiStyle::kAnthropic);
  if (end.error) return error_reply(*end.error, ApiStyle::kAnthropic);
  Json out = message_json(service, new_call_id("msg_"));
  out["content"] = std::move(blocks.list);
  out["stop_reason"] = stop_reason(end);
  if (!end.stop_text.empty()) out["stop_sequence"] = end.stop_text;
  out["usage"] = usage_json(end.usage);
  HttpReply reply;
  reply.body = to_text(out);
  return reply;
}

void stream_out(const Service& service, int64_t prompt_tokens, Run& run, StreamWriter& writer) {
  const auto emit = [&](const char* name, Json event) { writer.write(sse_event(name, event)); };
  Json start = message_json(service, new_call_id("msg_"));
  start["usage"]["input_tokens"] = prompt_tokens;
  emit("message_start", {{"type", "message_start"}, {"message", std::move(start)}});
  Blocks blocks(emit);
  run.drive({.stream = &writer,
             .on_event =
                 [&](size_t, AnswerEvent event) {
                   blocks.take(event);
                   if (event.kind != AnswerEvent::Kind::kEnd) return;
                   if (event.error) {
                     writer.write("event: error\ndata: " + error_body(*event.error, ApiStyle::kAnthropic) + "\n\n");
                     return;
                   }
                   Json delta;
                   delta["stop_reason"] = stop_reason(event);
                   delta["stop_sequence"] = event.stop_text.empty() ? Json() : Json(event.stop_text);
                   emit("message_delta", {{"type", "message_delta"}, {"delta", std::move(delta)}, {"usage", usage_json(event.usage)}});
                   emit("message_stop", {{"type", "message_stop"}});
                 },
             .on_silence =
                 [&] {
                   emit("ping", {{"type", "ping"}});
                 }});
}

}  // namespace

HttpReply messages(const Service& service, const HttpRequest& request) {
  const auto body = read_json(request.body, "body");
  if (!body.ok()) return error_reply(api_error(body.status()), ApiStyle::kAnthropic);
  auto spec = read_messages_request(*body, service.rules(), true);
  if (!spec.ok()) return error_reply(spec.error(), ApiStyle::kAnthropic);
  auto run = service.start(*spec, request.peer_gone);
  if (!run.ok()) return error_reply(run.error(), ApiStyle::kAnthropic);
  if (!spec->stream) return whole(service, request, std::move(*run));
  HttpReply reply;
  reply.content_type = "text/event-stream";
  reply.stream = [&service, run = std::make_shared<Run>(std::move(*run))](StreamWriter& writer) { stream_out(service, run->prompt_tokens(), *run, writer); };
  return reply;
}

HttpReply count_message_tokens(const Service& service, const HttpRequest& request) {
  const auto body = read_json(request.body, "body");
  if (!body.ok()) return error_reply(api_error(body.status()), ApiStyle::kAnthropic);
  auto spec = read_messages_request(*body, service.rules(), false);
  if (!spec.ok()) return error_reply(spec.error(), ApiStyle::kAnthropic);
  auto prompt = service.chat_prompt(*spec);
  if (!prompt.ok()) return error_reply(prompt.error(), ApiStyle::kAnthropic);
  Json out;
  out["input_tokens"] = prompt->size();
  HttpReply reply;
  reply.body = to_text(out);
  return reply;
}

}  // namespace dsv4
