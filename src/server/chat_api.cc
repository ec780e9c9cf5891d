#include "server/chat_api.h"

#include <ctime>

#include "server/json_text.h"
#include "server/openai_parts.h"
#include "text/utf8_stream.h"

namespace dsv4 {
namespace {

Json frame(const char* object, const std::string& id, const Service& service) {
  Json out;
  out["id"] = id;
  out["object"] = object;
  out["created"] = static_cast<int64_t>(std::time(nullptr));
  out["model"] = service.model_name();
  out["system_fingerprint"] = service.options().fingerprint;
  return out;
}

struct Choice {
  std::string reasoning, content, finish;
  struct Call {
    std::string id, name, arguments;
  };
  std::vector<Call> calls;
  std::vector<ShownToken> logprobs;
};

void collect(AnswerEvent event, Choice* choice) {
  for (ShownToken& token : event.logprobs) choice->logprobs.push_back(std::move(token));
  switch (event.kind) {
    case AnswerEvent::Kind::kReasoning: choice->reasoning += event.text; break;
    case AnswerEvent::Kind::kContent: choice->content += event.text; break;
    case AnswerEvent::Kind::kToolStart: choice->calls.push_back({event.tool_id, event.text, ""}); break;
    case AnswerEvent::Kind::kToolArguments: choice->calls.back().arguments += event.text; break;
    case AnswerEvent::Kind::kToolEnd: break;
    case AnswerEvent::Kind::kEnd: choice->finish = event.finish; break;
  }
}

Json choice_json(const Choice& choice, size_t index, bool with_logprobs) {
  Json message;
  message["role"] = "assistant";
  message["content"] = choice.content;
  if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
  message["refusal"] = nullptr;
  if (!choice.calls.empty()) {
    Json& calls = message["tool_calls"] = Json::array();
    for (const Choice::Call& c : choice.calls)
      calls.push_back({{"id", c.id}, {"type", "function"}, {"function", {{"name", c.name}, {"arguments", c.arguments}}}});
  }
  Json out;
  out["index"] = index;
  out["message"] = std::move(message);
  out["logprobs"] = with_logprobs ? chat_logprobs_json(choice.logprobs) : Json();
  out["finish_reason"] = choice.finish;
  return out;
}

HttpReply whole(const Service& service, const ChatSpec& spec, const HttpRequest& request, Run run) {
  std::vector<Choice> choices(static_cast<size_t>(spec.n));
  AnswerUsage usage;
  std::optional<ApiError> error;
  const bool complete = run.drive({.peer_gone = request.peer_gone, .on_event = [&](size_t index, AnswerEvent event) {
                                     if (event.error) error = event.error;
                                     add_usage(event, &usage);
                                     collect(std::move(event), &choices[index]);
                                   }});
  if (!complete) return error_reply({.status = 499, .message = "the client left"}, ApiStyle::kOpenAi);
  if (error) return error_reply(*error, ApiStyle::kOpenAi);
  Json out = frame("chat.completion", new_call_id("chatcmpl-"), service);
  Json& list = out["choices"] = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) list.push_back(choice_json(choices[i], i, spec.num_logprobs >= 0));
  out["usage"] = usage_json(usage);
  HttpReply reply;
  reply.body = to_text(out);
  return reply;
}

class ChatStream {
 public:
  ChatStream(const Service& service, const ChatSpec& spec, StreamWriter& writer)
      : writer_(writer), chunks_(frame("chat.completion.chunk", new_call_id("chatcmpl-"), service), spec.stream_usage) {
    for (int i = 0; i < spec.n; ++i) send(static_cast<size_t>(i), {{"role", "assistant"}, {"content", ""}});
  }

  void on_event(size_t index, AnswerEvent event) {
    add_usage(event, &usage_);
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning: return send(index, {{"reasoning_content", event.text}});
      case AnswerEvent::Kind::kContent: return send(index, {{"content", event.text}}, event.logprobs);
      case AnswerEvent::Kind::kToolStart:
        return send_call(index,
                         {{"index", event.tool_index}, {"id", event.tool_id}, {"type", "function"}, {"function", {{"name", event.text}, {"arguments", ""}}}});
      case AnswerEvent::Kind::kToolArguments: return send_call(index, {{"index", event.tool_index}, {"function", {{"arguments", event.text}}}});
      case AnswerEvent::Kind::kToolEnd: return;
      case AnswerEvent::Kind::kEnd:
        if (event.error) {
          failed_ = true;
          writer_.write("data: " + error_body(*event.error, ApiStyle::kOpenAi) + "\n\n");
          return;
        }
        return send(index, Json::object(), event.logprobs, event.finish.c_str());
    }
  }

  void end() {
    if (!failed_) writer_.write(chunks_.usage(usage_));
    writer_.write("data: [DONE]\n\n");
  }

 private:
  void send_call(size_t index, Json call) {
    Json delta;
    delta["tool_calls"] = Json::array({std::move(call)});
    send(index, std::move(delta));
  }

  void send(size_t index, Json delta, const std::vector<ShownToken>& logprobs = {}, const char* finish = nullptr) {
    Json choice;
    choice["index"] = index;
    choice["delta"] = std::move(delta);
    choice["logprobs"] = logprobs.empty() ? Json() : chat_logprobs_json(logprobs);
    choice["finish_reason"] = finish == nullptr ? Json() : Json(finish);
    writer_.write(chunks_.choice(choice));
  }

  StreamWriter& writer_;
  const StreamChunks chunks_;
  AnswerUsage usage_;
  bool failed_ = false;
};

}  // namespace

HttpReply chat_completions(const Service& service, const HttpRequest& request) {
  const auto body = read_json(request.body, "body");
  if (!body.ok()) return error_reply(api_error(body.status()), ApiStyle::kOpenAi);
  auto spec = read_chat_request(*body, service.rules());
  if (!spec.ok()) return error_reply(spec.error(), ApiStyle::kOpenAi);
  auto run = service.start(*spec, request.peer_gone);
  if (!run.ok()) return error_reply(run.error(), ApiStyle::kOpenAi);
  if (!spec->stream) return whole(service, *spec, request, std::move(*run));

  HttpReply reply;
  reply.content_type = "text/event-stream";
  reply.stream = [&service, spec = std::make_shared<ChatSpec>(std::move(*spec)), run = std::make_shared<Run>(std::move(*run))](StreamWriter& writer) {
    ChatStream stream(service, *spec, writer);
    const bool complete = run->drive({.stream = &writer,
                                      .on_event = [&](size_t index, AnswerEvent event) { stream.on_event(index, std::move(event)); },
                                      .on_silence = [&] { writer.write(": still here\n\n"); }});
    if (complete) stream.end();
  };
  return reply;
}

}  // namespace dsv4
