// Is a generated answer sound? One pure function: the first rule that applies gives the verdict.
//
//   ERROR             the run failed for a reason that is not about numbers
//   NONFINITE         the run stopped at a value that is not finite or that --validate refused, or a log probability is not finite
//   EMPTY             no token, the end of the answer at once, or no visible text
//   BOS_LOOP          the beginning-of-sentence token (also the fill value of a broken sampler) came back within the answer: twice in a
//                     row, or as a quarter of it. [32, 0, 0, ...] reads ">", a nonempty text without repetition; it is not coherent
//   REPEATING         a loop: the same 1 to 16 tokens at least three times in a row and for at least 8 tokens, at the end or over half of the
//                     answer; or the chosen tokens' log probabilities do not change at all (8 or more, below -0.001): dead logits
//   GARBLED           control characters; bytes that are no UTF-8 (one cut character at a length limit is none); bytes as random as noise;
//                     scripts mixed at random; tokens the model itself finds absurd (mean log probability below -4)
//   FIRST_TOKEN_ONLY  a beginning and nothing after it: the answer ended before `min_tokens`, and there is no known answer it equals
//   MISMATCH          sound in form, but not the known answer
//   COHERENT          none of these
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/request.h"

namespace dsv4 {

enum class Verdict : uint8_t { kCoherent, kEmpty, kFirstTokenOnly, kBosLoop, kRepeating, kGarbled, kNonfinite, kMismatch, kError };
inline constexpr int kNumVerdicts = 9;
const char* verdict_name(Verdict verdict);  // "COHERENT", "FIRST_TOKEN_ONLY", ...
// Process exit code: 0 only for COHERENT; 10 to 16 for refused outputs in the order above; ERROR 1.
int verdict_exit_code(Verdict verdict);
std::optional<Verdict> verdict_from_name(std::string_view name);

struct VerdictInput {
  std::vector<int32_t> tokens;  // generated ids, the end token included
  std::vector<float> logprobs;  // of the chosen tokens; may be empty
  std::string bytes;            // of the tokens without special ones, before any repair
  bool has_text = true;         // false: a model without a tokenizer, rules about text are skipped
  FinishReason finish = FinishReason::kLength;
  int32_t bos = 0;
  int32_t eos = 1;
  int64_t min_tokens = 32;                  // an answer without a known text needs this many to be judged coherent
  std::optional<std::string> known_answer;  // compared without surrounding blank space
  Status error;                             // of the run
};

struct VerdictResult {
  Verdict verdict = Verdict::kError;
  std::string reason;  // one sentence with the numbers
};

VerdictResult judge_output(const VerdictInput& input);

// The loop rule alone: period and repeated tokens of the first loop that counts; period 0 = none.
struct TokenLoop {
  int64_t period = 0;
  int64_t first = 0;   // token where it begins
  int64_t length = 0;  // tokens
};
TokenLoop find_loop(const std::vector<int32_t>& tokens);

// Shannon entropy of the bytes over that of equally likely ones: H / log2(min(size, n)), n = 95 when all are ASCII, else 256. 0 for fewer
// than two bytes.
double byte_entropy_ratio(std::string_view bytes);

}  // namespace dsv4
