#include "server/openai_parts.h"

#include <algorithm>

#include "server/json_text.h"

namespace dsv4 {
namespace {

Json token_json(const ShownLogprob& token) {
  Json out;
  out["token"] = token.token;  // a token may end inside a character: "bytes" has it exactly
  out["logprob"] = token.logprob;
  Json& bytes = out["bytes"] = Json::array();
  for (const unsigned char byte : token.token) bytes.push_back(byte);
  return out;
}

}  // namespace

Json chat_logprobs_json(const std::vector<ShownToken>& tokens) {
  Json content = Json::array();
  for (const ShownToken& token : tokens) {
    Json entry = token_json(token.chosen);
    Json& top = entry["top_logprobs"] = Json::array();
    for (const ShownLogprob& other : token.top) top.push_back(token_json(other));
    content.push_back(std::move(entry));
  }
  Json out;
  out["content"] = std::move(content);
  out["refusal"] = nullptr;
  return out;
}

Json usage_json(const AnswerUsage& usage) {
  Json out;
  out["prompt_tokens"] = usage.prompt_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  out["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  out["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return out;
}

void add_usage(const AnswerEvent& event, AnswerUsage* total) {
  if (event.kind != AnswerEvent::Kind::kEnd) return;
  total->prompt_tokens = event.usage.prompt_tokens;
  total->completion_tokens += event.usage.completion_tokens;
  total->reasoning_tokens += event.usage.reasoning_tokens;
  total->cached_tokens = std::max(total->cached_tokens, event.usage.cached_tokens);
}

StreamChunks::StreamChunks(Json frame, bool with_usage) : frame_(std::move(frame)), with_usage_(with_usage), head_("data: " + to_text(frame_)) {
  head_.back() = ',';  // was the closing brace
  head_ += "\"choices\":[";
}

std::string StreamChunks::choice(const Json& choice) const { return head_ + to_text(choice) + (with_usage_ ? "],\"usage\":null}\n\n" : "]}\n\n"); }

std::string StreamChunks::usage(const AnswerUsage& usage) const {
  if (!with_usage_) return "";
  Json last = frame_;
  last["choices"] = Json::array();
  last["usage"] = usage_json(usage);
  return sse_data(last);
}

}  // namespace dsv4
