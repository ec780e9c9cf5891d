// What a caller asks of the engine, and what it gets back. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4 {

// How the next token is chosen. Steps, in this order: logit_bias, repetition, frequency and presence penalties, constraint mask,
// then greedy (temperature 0) or: divide by temperature, keep top_k, keep the smallest set with mass top_p, drop below min_p times
// the best, sample. Ranges are checked by validate().
struct SamplingParams {
  float temperature = 0;                                   // 0 = greedy; up to 100
  float top_p = 1;                                         // (0, 1]
  int32_t top_k = 0;                                       // 0 = all
  float min_p = 0;                                         // [0, 1)
  float repetition_penalty = 1;                            // (0, 10]; > 1 weakens tokens of prompt and output: l > 0 ? l / r : l * r
  float frequency_penalty = 0;                             // [-2, 2]; subtracted once per occurrence in the output
  float presence_penalty = 0;                              // [-2, 2]; subtracted if the token occurs in the output
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token id, added value in [-100, 100]
  std::optional<uint64_t> seed = {};                       // the n-th random number depends on (seed, n) alone; none = drawn by the engine and reported
};

// Restricts which tokens may come next (JSON, grammars). One object per request; used from the engine's thread.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets the logits of forbidden tokens to -infinity. At least one token stays possible.
  virtual Status mask(std::span<float> logits) = 0;
  // The token that was chosen.
  virtual Status accept(int32_t token) = 0;
};

struct Request {
  std::vector<int32_t> prompt;  // token ids, at least one
  SamplingParams sampling;
  int64_t max_new_tokens = 256;   // 0 = only evaluate the prompt
  std::vector<std::string> stop;  // text that ends the answer; it and what follows are not given out
  int32_t stop_after_token = -1;  // stop strings are looked for only in text after this token was generated (the end of thinking); -1 = in all
  bool ignore_eos = false;
  bool skip_special = false;  // leave special tokens out of the text (they stay in the ids)
  int32_t num_logprobs = -1;  // -1 = none; n >= 0 = the chosen token's, and the n best: of the raw logits' log-softmax
  std::shared_ptr<TokenConstraint> constraint;
  // Sees the logits of every position (prompt too) as they are computed. For verification and prompt_logprobs.
  std::function<void(int64_t position, std::span<const float> logits)> logits_hook;
};

enum class FinishReason : uint8_t { kNone, kEos, kStop, kLength, kContext, kCancelled, kError };
const char* finish_reason_name(FinishReason reason);  // "eos", "stop", "length", "context", "cancelled", "error"

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// One generated token, or the end. `text` holds what became certain with it: whole code points, nothing that may be part of a stop
// string. The last output of a request has a finish reason; its token is -1 when no token came with the end.
struct TokenOutput {
  uint64_t request_id = 0;
  int32_t token = -1;
  std::string text;
  std::optional<TokenLogprob> logprob;
  std::vector<TokenLogprob> top_logprobs;  // best first
  FinishReason finish = FinishReason::kNone;
  std::string stop_text;          // with kStop: the stop string that was found
  Status error;                   // with kError
  int64_t num_cached_tokens = 0;  // prompt tokens that came from the prefix cache, with each output: a caller may end a request at any
  uint64_t seed = 0;              // with the end: the seed that was used
};

using OutputSink = std::function<void(const TokenOutput&)>;

// Every rule of SamplingParams that fails, in one sentence each.
Status validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace dsv4
