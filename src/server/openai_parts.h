// Pieces of OpenAI's replies that several endpoints share. Include only from .cc files.
#pragma once

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

}  // namespace dsv4
