// POST /v1/completions, /v1/tokenize and /v1/detokenize: text and tokens without messages.
#pragma once

#include "server/service.h"

namespace dsv4 {

HttpReply completions(const Service& service, const HttpRequest& request);
HttpReply tokenize(const Service& service, const HttpRequest& request);
HttpReply detokenize(const Service& service, const HttpRequest& request);

// The token ids of a text prompt: with the model's begin token first unless the text brings its own or `add_special` is off.
ApiResult<std::vector<int32_t>> encode_prompt(const Service& service, const std::string& text, bool add_special);

// A token id from JSON: an integer below the vocabulary's size.
std::optional<int32_t> token_of(const JsonValue& value, int64_t vocab_size);

}  // namespace dsv4
