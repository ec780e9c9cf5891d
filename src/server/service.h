// What the endpoints share: the model's text side, the way into the engine, and the rules for requests.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/chat_request.h"
#include "server/constraint_cache.h"
#include "server/run.h"
#include "text/prompt_encoder.h"
#include "text/tokenizer.h"

namespace dsv4 {

struct ServiceOptions {
  ApiRules rules;
  int64_t context_tokens = 0;  // of one sequence, prompt and answer
  std::string fingerprint;     // of the model, shown as system_fingerprint
  int32_t begin_token = -1;    // put before text prompts; -1 = none
  int32_t eos_token = 1;
  int64_t created = 0;  // seconds since 1970, shown with the model
};

// A prompt and how to answer it, for APIs without messages.
struct CompletionSpec {
  std::vector<std::vector<int32_t>> prompts;
  SamplingParams sampling;
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int n = 1;  // answers per prompt
  int num_logprobs = -1;
};

class Service {
 public:
  // Parts must outlive it. `tokenizer` may be null (synthetic models): then nothing that needs text works. `encoder` may be empty: no
  // chat.
  Service(EngineLoop& loop, const Tokenizer* tokenizer, std::optional<PromptEncoder> encoder, ServiceOptions options);

  const ServiceOptions& options() const { return options_; }
  const ApiRules& rules() const { return options_.rules; }
  const Tokenizer* tokenizer() const { return tokenizer_; }
  EngineLoop& loop() const { return loop_; }
  std::string model_name() const { return options_.rules.model_names.front(); }

  // The prompt of a conversation.
  ApiResult<std::vector<int32_t>> chat_prompt(const ChatSpec& spec) const;

  // Queues a request. Waits until the engine has taken or refused it; a peer that leaves meanwhile ends that.
  ApiResult<Run> start(const ChatSpec& spec, const std::function<bool()>& peer_gone) const;

  // Choice p * n + i is answer i to prompt p. `logits_hooks`: one per choice or none.
  ApiResult<Run> start(const CompletionSpec& spec, const std::function<bool()>& peer_gone,
                       std::vector<std::function<void(int64_t, std::span<const float>)>> logits_hooks = {}) const;

 private:
  ApiResult<std::string> render(const ChatSpec& spec) const;
  // The tokens an answer may have, or the error that the context does not hold what was asked for.
  ApiResult<int64_t> room_for(int64_t prompt_tokens, std::optional<int64_t> max_tokens) const;
  ApiResult<Run> submit(std::vector<Request> requests, std::vector<AnswerOptions> answers, const std::function<bool()>& peer_gone) const;

  EngineLoop& loop_;
  const Tokenizer* const tokenizer_;
  const std::optional<PromptEncoder> encoder_;
  const ServiceOptions options_;
  const std::unique_ptr<ConstraintCache> constraints_;  // null without tokenizer or encoder
};

}  // namespace dsv4
