// Is this engine one that generates? Asked before requests are taken, and again after a device fault.
#pragma once

#include <functional>
#include <optional>

#include "server/engine_loop.h"
#include "text/prompt_encoder.h"

namespace dsv4 {

// Generates up to 16 tokens, greedily, from a short question (without a tokenizer: from a few token ids). Ok when tokens came, none of
// a row with a NaN, and, if there is a tokenizer, they are not all one token and make valid text with something in it.
std::function<Status(StepEngine&)> make_startup_probe(const Engine& engine, const std::optional<PromptEncoder>& encoder);

// The verdict on generated tokens, the end-of-sequence token left out.
Status judge_probe(const std::vector<int32_t>& tokens, const std::string& text, bool has_text);

}  // namespace dsv4
