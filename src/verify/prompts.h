// Prompts for checks: a message becomes token ids the way the model wants to be asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/prompt_encoder.h"

namespace dsv4 {

struct CheckPrompt {
  std::string message;                    // the user's
  std::vector<std::string> tool_schemas;  // JSON text of each function
};

// With an encoding file: a chat in chat mode. Without: <bos> and the message as plain text. kUnsupported without a tokenizer.
Result<std::vector<int32_t>> encode_prompt(const Engine& engine, const CheckPrompt& prompt);

// The bytes of generated ids without special tokens, before any repair of UTF-8.
std::string plain_bytes(const Tokenizer& tokenizer, std::span<const int32_t> tokens);

// Python's repr of a text: single quotes, \n, \t, \r, \\, \', other control characters as \xNN or \uNNNN; everything else as it is.
std::string python_repr(std::string_view utf8);

}  // namespace dsv4
