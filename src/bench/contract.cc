#include "bench/contract.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "verify/numbers.h"
#include "verify/runs.h"
#include "verify/validate.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

Result<ContractRow> run_row(Engine& engine, const std::vector<int32_t>& prompt, int64_t new_tokens) {
  ContractRow row;
  row.prompt_tokens = static_cast<int64_t>(prompt.size());
  Clock::time_point first, last;
  bool ended = false;
  Status error;
  const auto start = Clock::now();
  const auto id = engine.submit(greedy_request(prompt, new_tokens), [&](const TokenOutput& o) {
    if (o.token >= 0) {
      last = Clock::now();
      if (row.tokens.empty()) first = last;
      row.tokens.push_back(o.token);
    }
    if (o.finish == FinishReason::kNone) return;
    ended = true;
    row.finish = finish_reason_name(o.finish);
    row.cached_tokens = o.num_cached_tokens;
    error = o.error;
  });
  DSV4_RETURN_IF_ERROR(id.status());
  while (!ended) DSV4_RETURN_IF_ERROR(engine.step());
  DSV4_RETURN_IF_ERROR(error);
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  row.new_tokens = static_cast<int64_t>(row.tokens.size());
  if (!row.tokens.empty()) {
    row.first_token_seconds = seconds(first - start);
    row.decode_seconds = seconds(last - first);
    row.total_seconds = seconds(last - start);
  }
  return row;
}

void judge_row(const ContractRow& row, std::vector<std::string>* reasons) {
  const std::string name = fmt::format("{} of prompt {}", row.kind, row.prompt);
  if (row.new_tokens < kContractNewTokens)
    reasons->push_back(fmt::format("{}: early end: {} of {} tokens, finish {}", name, row.new_tokens, kContractNewTokens, row.finish));
  if (row.cached_tokens > 0) reasons->push_back(fmt::format("{}: not cold: {} prompt tokens came from the prefix cache", name, row.cached_tokens));
  if (row.prompt_tokens != kContractPromptTokens)
    reasons->push_back(fmt::format("{}: its prompt has {} tokens instead of {}", name, row.prompt_tokens, kContractPromptTokens));
}

Status check_canaries(Engine& engine, ContractReport* report) {
  if (engine.tokenizer() == nullptr) {
    report->canary = "none: the model has no tokenizer";
    return ok_status();
  }
  const auto file = load_model_canaries(engine.checkpoint().directory());
  if (file.status().code() == StatusCode::kNotFound) {
    report->canary = "none: the model has no canaries.json";
    return ok_status();
  }
  DSV4_RETURN_IF_ERROR(file.status());
  DSV4_ASSIGN_OR_RETURN(const CanaryReport canaries, run_canaries(engine, *file));
  int64_t passed = 0;
  for (const CanaryLine& line : canaries.lines) {
    passed += line.passed ? 1 : 0;
    if (!line.passed) report->void_reasons.push_back("canary " + line.canary + ": " + line.fault);
  }
  report->canary = fmt::format("{} of {} steps", passed, canaries.lines.size());
  return ok_status();
}

}  // namespace

EngineOptions contract_engine_options(EngineOptions options) {
  options.max_seqs = 1;
  options.prefix_states = 0;  // cold by construction; cached tokens are counted all the same
  if (options.max_context_tokens == 0) options.max_context_tokens = 1024;
  return options;
}

std::vector<double> ContractReport::suite_speeds() const {
  std::vector<double> out;
  for (const ContractRow& row : rows) {
    if (row.kind != "repeat") out.push_back(row.tokens_per_second());
  }
  return out;
}

double ContractReport::median() const { return dsv4::median(suite_speeds()); }
double ContractReport::p10() const { return quantile(suite_speeds(), 0.1); }

Result<ContractReport> run_contract(Engine& engine, const ContractOptions& options, const std::function<void(const ContractRow&)>& on_row) {
  ContractReport report;
  report.manifest = make_manifest(engine, options.command);
  report.manifest.fields.emplace_back("option.validate", options.validate ? "yes" : "no");
  DSV4_ASSIGN_OR_RETURN(const auto prompts, contract_prompts(engine));
  std::unique_ptr<Validator> validator;
  if (options.validate) validator = std::make_unique<Validator>(engine, ValidateOptions{});
  // Pages touched, graphs captured: with the last prompt reversed, so that no measured prompt begins like it.
  std::vector<int32_t> warmup(prompts.back().rbegin(), prompts.back().rend());
  if (validator) validator->begin_warmup();
  // A value that is not finite there will be met again, and void the rows.
  if (const Status warm = run_row(engine, warmup, 16).status(); !warm.ok() && warm.code() != StatusCode::kNumerical) return warm;
  if (validator) validator->end_warmup();

  const auto take = [&](const std::string& kind, int64_t prompt) -> Status {
    auto row = run_row(engine, prompts[static_cast<size_t>(prompt)], kContractNewTokens);
    if (row.status().code() == StatusCode::kNumerical) {
      report.void_reasons.push_back(fmt::format("{} of prompt {}: {}", kind, prompt, row.status().message()));
      return ok_status();
    }
    DSV4_RETURN_IF_ERROR(row.status());
    row->kind = kind;
    row->prompt = prompt;
    judge_row(*row, &report.void_reasons);
    if (on_row) on_row(*row);
    report.rows.push_back(std::move(*row));
    return ok_status();
  };
  for (int64_t i = 0; i < kContractPrompts; ++i) DSV4_RETURN_IF_ERROR(take(i == 0 ? "headline" : "suite", i));
  for (int64_t i = 0; i < options.repeats; ++i) DSV4_RETURN_IF_ERROR(take("repeat", 0));
  for (const ContractRow& row : report.rows) {
    if (row.kind == "repeat" && row.tokens != report.rows[0].tokens) report.void_reasons.push_back("repeat of prompt 0: other tokens than the first time");
  }
  if (*report.manifest.find("commit") == kUnknownCommit)
    report.void_reasons.push_back("identity: this program was built outside a repository, its commit is unknown");
  if (options.run_canaries) {
    DSV4_RETURN_IF_ERROR(check_canaries(engine, &report));
  } else {
    report.canary = "none: switched off";
  }
  return report;
}

}  // namespace dsv4
