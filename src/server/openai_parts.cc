#include "server/openai_parts.h"

#include <algorithm>

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

}  // namespace dsv4
