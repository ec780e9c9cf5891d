#include "server/service.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/python_json.h"

namespace dsv4 {
namespace {

ApiError no_text() { return {.status = 400, .message = "this model has no tokenizer.json: it can take token ids only"}; }

bool continues_an_answer(const ChatSpec& spec) { return spec.messages.back().role == ChatRole::kAssistant; }

ThinkingMode mode_of(const ChatSpec& spec) { return spec.thinking ? ThinkingMode::kThinking : ThinkingMode::kChat; }

}  // namespace

Service::Service(EngineLoop& loop, const Tokenizer* tokenizer, std::optional<PromptEncoder> encoder, ServiceOptions options)
    : loop_(loop),
      tokenizer_(tokenizer),
      encoder_(std::move(encoder)),
      options_(std::move(options)),
      constraints_(tokenizer_ != nullptr && encoder_ ? std::make_unique<ConstraintCache>(*tokenizer_, encoder_->markup(), options_.eos_token) : nullptr) {}

ApiResult<std::string> Service::render(const ChatSpec& spec) const {
  if (tokenizer_ == nullptr) return no_text();
  if (!encoder_) return ApiError{.status = 400, .message = "this model has no encoding/encoding_dsv4.py: it completes text, but does not chat"};
  std::vector<ChatMessage> messages = spec.messages;
  if (continues_an_answer(spec)) messages.back().without_eos = true;
  std::vector<std::string> tools;
  if (spec.tool_choice != ToolChoice::kNone) {
    for (const ToolSpec& tool : spec.tools) tools.push_back(tool.schema_text);
  }
  std::string format;
  if (spec.format == OutputFormat::kJsonObject) format = "{\"type\": \"object\"}";
  if (spec.format == OutputFormat::kJsonSchema) format = to_python_json(spec.schema);
  attach_request_tools(std::move(tools), std::move(format), &messages);
  RenderOptions render;
  render.thinking_mode = mode_of(spec);
  render.reasoning_effort = spec.effort;
  auto prompt = encoder_->render(messages, render);
  if (!prompt.ok()) return api_error(prompt.status());
  return std::move(*prompt);
}

ApiResult<std::vector<int32_t>> Service::chat_prompt(const ChatSpec& spec) const {
  auto prompt = render(spec);
  if (!prompt.ok()) return prompt.error();
  auto tokens = tokenizer_->encode(*prompt);
  if (!tokens.ok()) return api_error(tokens.status());
  return std::move(*tokens);
}

ApiResult<int64_t> Service::room_for(int64_t prompt_tokens, std::optional<int64_t> max_tokens) const {
  const int64_t context = options_.context_tokens;
  if (prompt_tokens + max_tokens.value_or(1) > context) {
    std::string asked = max_tokens ? fmt::format(" and asks for an answer of {}", *max_tokens) : "";
    return ApiError{
        .status = 400,
        .message = fmt::format("the context holds {} tokens, prompt and answer; this request's prompt has {} tokens{}", context, prompt_tokens, asked),
        .param = "messages",
        .code = "context_length_exceeded"};
  }
  return max_tokens.value_or(context - prompt_tokens);
}

ApiResult<Run> Service::start(const ChatSpec& spec, const std::function<bool()>& peer_gone) const {
  auto prompt = chat_prompt(spec);
  if (!prompt.ok()) return prompt.error();
  auto room = room_for(static_cast<int64_t>(prompt->size()), spec.max_tokens);
  if (!room.ok()) return room.error();

  AnswerOptions answer;
  answer.tokenizer = tokenizer_;
  answer.markup = &encoder_->markup();
  answer.mode = continues_an_answer(spec) ? ThinkingMode::kChat : mode_of(spec);
  answer.single_call = !spec.parallel_tool_calls;
  answer.prompt_tokens = static_cast<int64_t>(prompt->size());

  const int32_t thinking_end = answer.mode == ThinkingMode::kThinking ? tokenizer_->id_of(answer.markup->thinking_end).value_or(-1) : -1;
  auto constraints = constraints_->make(spec, thinking_end, spec.n);
  if (!constraints.ok()) return constraints.error();

  std::vector<Request> requests;
  for (int i = 0; i < spec.n; ++i) {
    Request r;
    r.prompt = *prompt;
    r.sampling = spec.sampling;
    if (r.sampling.seed) *r.sampling.seed += static_cast<uint64_t>(i);  // choices differ, and each repeats
    r.max_new_tokens = *room;
    r.stop = spec.stop;
    r.stop_after_token = thinking_end;
    if (!constraints->empty()) r.constraint = (*constraints)[static_cast<size_t>(i)];
    r.ignore_eos = spec.ignore_eos;
    r.num_logprobs = spec.num_logprobs;
    requests.push_back(std::move(r));
  }
  return submit(std::move(requests), std::vector<AnswerOptions>(static_cast<size_t>(spec.n), answer), peer_gone);
}

ApiResult<Run> Service::start(const CompletionSpec& spec, const std::function<bool()>& peer_gone,
                              std::vector<std::function<void(int64_t, std::span<const float>)>> logits_hooks) const {
  std::vector<Request> requests;
  std::vector<AnswerOptions> answers;
  for (const auto& prompt : spec.prompts) {
    const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
    auto room = room_for(prompt_tokens, spec.max_tokens);
    if (!room.ok()) return room.error();
    for (int i = 0; i < spec.n; ++i) {
      Request r;
      r.prompt = prompt;
      r.sampling = spec.sampling;
      if (r.sampling.seed) *r.sampling.seed += static_cast<uint64_t>(i);
      r.max_new_tokens = *room;
      r.stop = spec.stop;
      r.ignore_eos = spec.ignore_eos;
      r.skip_special = true;
      r.num_logprobs = spec.num_logprobs;
      if (!logits_hooks.empty()) r.logits_hook = std::move(logits_hooks[requests.size()]);
      requests.push_back(std::move(r));
      AnswerOptions answer;
      answer.tokenizer = tokenizer_;
      answer.prompt_tokens = prompt_tokens;
      answers.push_back(answer);
    }
  }
  return submit(std::move(requests), std::move(answers), peer_gone);
}

ApiResult<Run> Service::submit(std::vector<Request> requests, std::vector<AnswerOptions> answers, const std::function<bool()>& peer_gone) const {
  auto tickets = loop_.submit(std::move(requests));
  if (!tickets.ok()) {
    ApiError error = api_error(tickets.status());
    error.retry_after_seconds = loop_.retry_after_seconds();
    if (tickets.status().code() == StatusCode::kResourceLimit) {
      error.status = 429;
      error.code = "queue_full";
    } else {
      error.status = 503;
      error.code = "not_ready";
    }
    return error;
  }
  std::vector<Answer> choices;
  for (AnswerOptions& options : answers) choices.emplace_back(std::move(options));
  Run run(loop_, *tickets, std::move(choices));
  for (const auto& ticket : *tickets) {
    std::optional<Status> answer;
    while (!(answer = ticket->wait_accepted(std::chrono::milliseconds(100)))) {
      if (peer_gone()) return ApiError{.status = 499, .message = "the client left"};
    }
    if (!answer->ok()) return api_error(*answer);
  }
  return run;
}

}  // namespace dsv4
