// Two configurations on the same text: does each position give the same next token, and nearly the same probabilities? Canaries can pass
// on a checkpoint that was loaded wrongly in one detail; the distribution over 96 positions does not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/manifest.h"
#include "verify/runs.h"

namespace dsv4 {

inline constexpr int64_t kLogprobPositions = 96;
inline constexpr int32_t kLogprobTop = 20;

struct LogprobRowRecord {
  std::vector<TokenLogprob> top;  // best first
};

// What one configuration says, enough to compare later: a file of one run can be held against another run of another machine.
struct LogprobRecord {
  std::string model, identity, configuration, device;
  Manifest manifest;
  std::vector<int32_t> tokens;
  std::vector<LogprobRowRecord> rows;  // of the last `rows.size()` positions but one: row i predicts tokens[tokens.size() - rows.size() + i]
};

// Evaluates `tokens` (at least 2; the last `num_positions` predictions are kept).
Result<LogprobRecord> record_logprobs(Engine& engine, std::vector<int32_t> tokens, const std::string& configuration, int64_t num_positions = kLogprobPositions);

std::string to_json(const LogprobRecord& record);
Result<LogprobRecord> parse_logprobs(std::string_view json_text, const std::string& name);

struct LogprobBounds {
  double agreement = 0.97;  // share of positions with the same best token
  double mean_kl = 0.02;    // nats
};

struct LogprobComparison {
  int64_t positions = 0;
  int64_t agree = 0;
  double mean_kl = 0, worst_kl = 0;           // of B from A, over A's top tokens and the rest as one event
  int64_t worst_position = -1;                // index of the token that is predicted there
  int32_t worst_a = -1, worst_b = -1;         // best tokens there
  double perplexity_a = 0, perplexity_b = 0;  // of the text's tokens; a token outside the top counts with the rest's probability
  bool passed = false;

  double agreement() const { return positions == 0 ? 0 : static_cast<double>(agree) / static_cast<double>(positions); }
};

// Errors: records of different texts.
Result<LogprobComparison> compare_logprobs(const LogprobRecord& a, const LogprobRecord& b, const LogprobBounds& bounds);

std::string to_text(const LogprobComparison& c, const LogprobRecord& a, const LogprobRecord& b, const LogprobBounds& bounds);
std::string to_json(const LogprobComparison& c, const LogprobRecord& a, const LogprobRecord& b);

}  // namespace dsv4
