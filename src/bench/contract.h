// The benchmark contract: 12 prompts of exactly 65 tokens, 128 new tokens each, greedy, one request at a time, cold (nothing of a prompt
// in the prefix cache). Speed is counted after the first token: 127 tokens over the time from the first token to the last.
//
//   row 0          the first prompt, the first request of the engine after one warm-up of another prompt: the headline
//   rows 0 to 11   the suite: median and p10 of tokens per second
//   repeats        the first prompt again, cold as well: kept apart, never mixed into the suite
//
// A run is void, and says why, when: an answer ended before its 128 tokens; tokens came from the prefix cache; a repeat gave other tokens
// than row 0; the canaries failed; a request stopped at a value that is not finite, or --validate refused it; the build's commit is
// unknown, so that nothing names what was measured. A void run's numbers are not numbers: compare refuses them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/canary.h"
#include "verify/manifest.h"

namespace dsv4 {

inline constexpr int64_t kContractPrompts = 12;
inline constexpr int64_t kContractPromptTokens = 65;
inline constexpr int64_t kContractNewTokens = 128;

struct ContractRow {
  std::string kind;    // "headline", "suite", "repeat"
  int64_t prompt = 0;  // its index
  int64_t prompt_tokens = 0, new_tokens = 0, cached_tokens = 0;
  double first_token_seconds = 0;  // submit to first token
  double decode_seconds = 0;       // first token to last
  double total_seconds = 0;
  std::string finish;
  std::vector<int32_t> tokens;

  double tokens_per_second() const { return decode_seconds > 0 ? static_cast<double>(new_tokens - 1) / decode_seconds : 0; }
};

struct ContractReport {
  Manifest manifest;
  std::vector<ContractRow> rows;
  std::string canary;  // "7 of 7 steps", "none: ...", ...
  std::vector<std::string> void_reasons;

  bool is_void() const { return !void_reasons.empty(); }
  std::vector<double> suite_speeds() const;  // of rows 0 to 11
  double median() const;
  double p10() const;  // 10 % of the suite's rows are slower
};

struct ContractOptions {
  int64_t repeats = 3;
  bool run_canaries = true;
  bool validate = false;  // voids the run when a value is refused; its numbers are slow and say so
  std::string command;
};

// The engine's options that the contract fixes: one sequence at a time.
EngineOptions contract_engine_options(EngineOptions options);

// 12 prompts of 65 tokens: plain text, <bos> and the last 64 tokens of it. A model without a tokenizer gets seeded ids. kUnsupported when a
// text has fewer.
Result<std::vector<std::vector<int32_t>>> contract_prompts(const Engine& engine);

Result<ContractReport> run_contract(Engine& engine, const ContractOptions& options, const std::function<void(const ContractRow&)>& on_row = {});

std::string to_text(const ContractRow& row);
std::string to_text(const ContractReport& report);
std::string to_json(const ContractReport& report);
Result<ContractReport> parse_contract(std::string_view json_text, const std::string& name);

// Errors (kInvalidArgument): a void run, different identities (all differences are listed), different prompts.
Result<std::string> compare_contracts(const ContractReport& a, const ContractReport& b, const std::vector<std::string>& vary);

}  // namespace dsv4
