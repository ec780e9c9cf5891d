// Pieces of OpenAI's replies that several endpoints share. Include only from .cc files.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "server/answer.h"

namespace dsv4 {

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...], "refusal": null}
Json chat_logprobs_json(const std::vector<ShownToken>& tokens);

// {"prompt_tokens", "completion_tokens", "total_tokens", details}
Json usage_json(const AnswerUsage& usage);

// Adds a choice's end to the whole request's usage: prompts of choices are one prompt.
void add_usage(const AnswerEvent& event, AnswerUsage* total);

// The events of one stream. What all its chunks say ("id" to "system_fingerprint") becomes text once, not for every token.
class StreamChunks {
 public:
  StreamChunks(Json frame, bool with_usage);

  std::string choice(const Json& choice) const;       // with "usage": null where the usage comes at the end
  std::string usage(const AnswerUsage& usage) const;  // the chunk without choices; empty when it is not wanted

 private:
  const Json frame_;
  const bool with_usage_;
  std::string head_;
};

}  // namespace dsv4
