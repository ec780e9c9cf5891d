#include "bench/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/json.h"
#include "tensor/synthetic_word.h"
#include "verify/numbers.h"
#include "verify/runs.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmSteps = 4;  // one records the graph, the others fill caches

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A greedy request that does not end by itself. Ids keep clear of the first ones, which are special in published vocabularies.
Request random_request(const Engine& engine, int64_t tokens, int64_t new_tokens, uint64_t seed) {
  const int64_t vocab = engine.config().vocab_size, low = vocab / 8;
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<int32_t>(
        low + static_cast<int64_t>(synthetic_mix((seed << 32) + static_cast<uint64_t>(i) * kSyntheticStep) % static_cast<uint64_t>(vocab - low))));
  }
  Request request = greedy_request(std::move(prompt), new_tokens);
  request.ignore_eos = true;
  return request;
}

void summarize(std::vector<double> seconds, StepBenchRow* row) {
  row->count = static_cast<int64_t>(seconds.size());
  row->min_seconds = *std::min_element(seconds.begin(), seconds.end());
  row->max_seconds = *std::max_element(seconds.begin(), seconds.end());
  row->median_seconds = median(std::move(seconds));
}

Result<StepBenchRow> bench_prompt(Engine& engine, int64_t tokens, int64_t runs, uint64_t* seed) {
  StepBenchRow row{.kind = "prompt", .tokens = tokens};
  std::vector<double> seconds;
  for (int64_t run = 0; run <= runs; ++run) {
    const auto start = Clock::now();
    DSV4_RETURN_IF_ERROR(generate(engine, random_request(engine, tokens, 1, ++*seed)).status());
    if (run > 0) seconds.push_back(seconds_since(start));
  }
  summarize(std::move(seconds), &row);
  row.tokens_per_second = static_cast<double>(tokens) / row.median_seconds;
  return row;
}

Result<StepBenchRow> bench_decode(Engine& engine, const DecodeCase& c, int64_t steps, uint64_t* seed) {
  StepBenchRow row{.kind = "decode", .rows = c.rows, .tokens = c.context_tokens};
  // While the last prompts are computed the first sequences decode already, a token a step.
  const int64_t prompt_steps = (c.rows * c.context_tokens + engine.options().prefill_chunk - 1) / engine.options().prefill_chunk + 1;
  const int64_t new_tokens = prompt_steps + kWarmSteps + steps + 2;
  std::vector<uint64_t> ids;
  Status error;
  for (int64_t i = 0; i < c.rows; ++i) {
    DSV4_ASSIGN_OR_RETURN(const uint64_t id, engine.submit(random_request(engine, c.context_tokens, new_tokens, ++*seed), [&](const TokenOutput& o) {
      if (o.finish == FinishReason::kError) error = o.error;
    }));
    ids.push_back(id);
  }
  std::vector<double> seconds;
  double host = 0;
  int64_t whole_steps = 0;  // in which every sequence got a token
  while (static_cast<int64_t>(seconds.size()) < steps) {
    const EngineStats before = engine.stats();
    const int64_t kernels = engine.device().kernels_launched();
    const auto start = Clock::now();
    DSV4_RETURN_IF_ERROR(engine.step());
    const double taken = seconds_since(start);
    DSV4_RETURN_IF_ERROR(error);
    const EngineStats after = engine.stats();
    if (after.preemptions > before.preemptions || engine.idle()) {
      return resource_limit(fmt::format("bench steps: {} rows at a context of {} do not fit the engine's cache of {} tokens", c.rows, c.context_tokens,
                                        engine.options().cache_tokens));
    }
    if (after.prompt_tokens > before.prompt_tokens || after.generated_tokens - before.generated_tokens != c.rows) continue;
    if (engine.device().kernels_launched() > kernels) row.kernels = engine.device().kernels_launched() - kernels;
    if (++whole_steps <= kWarmSteps) continue;
    seconds.push_back(taken);
    host += taken - (after.wait_seconds - before.wait_seconds);
  }
  for (const uint64_t id : ids) engine.cancel(id);
  double total = 0;
  for (const double s : seconds) total += s;
  row.tokens_per_second = static_cast<double>(c.rows * steps) / total;
  row.host_seconds = host / static_cast<double>(steps);
  summarize(std::move(seconds), &row);
  return row;
}

}  // namespace

Result<DecodeCase> parse_decode_case(const std::string& text) {
  DecodeCase out;
  const char *end = text.data() + text.size(), *at = text.data();
  auto parsed = std::from_chars(at, end, out.rows);
  bool good = parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == 'x';
  if (good) {
    parsed = std::from_chars(parsed.ptr + 1, end, out.context_tokens);
    good = parsed.ec == std::errc() && parsed.ptr == end && out.rows >= 1 && out.context_tokens >= 1;
  }
  if (!good) return invalid_argument("decode case \"" + text + "\": it must be ROWSxCONTEXT, such as 16x4096");
  return out;
}

EngineOptions step_bench_engine_options(EngineOptions options, const StepBenchOptions& bench) {
  options.prefix_states = 0;
  options.prompts_give_way = false;
  options.max_seqs = 1;
  int64_t longest = 0, most = 0;
  for (const int64_t tokens : bench.prompts) longest = std::max(longest, tokens + 1);
  for (const DecodeCase& c : bench.decodes) {
    // Room for the tokens that early sequences decode while late prompts are computed, at a chunk of 256 at least.
    const int64_t tokens = c.context_tokens + c.rows * c.context_tokens / 256 + bench.steps + kWarmSteps + 16;
    longest = std::max(longest, tokens);
    most = std::max(most, c.rows * tokens);
    options.max_seqs = std::max<int32_t>(options.max_seqs, static_cast<int32_t>(c.rows));
  }
  options.max_context_tokens = std::max(options.max_context_tokens, longest);
  options.cache_tokens = std::max({options.cache_tokens, most, longest});
  return options;
}

Result<StepBenchReport> run_step_bench(Engine& engine, const StepBenchOptions& options, const std::function<void(const StepBenchRow&)>& on_row) {
  StepBenchReport report;
  report.manifest = make_manifest(engine, options.command);
  for (const TensorEntry& t : engine.checkpoint().tensors()) report.weight_bytes += t.size_bytes;
  const EngineStats stats = engine.stats();
  report.cache_bytes = stats.cache_bytes;
  report.scratch_bytes = stats.scratch_bytes;
  report.cache_tokens = engine.options().cache_tokens;
  report.free_device_bytes = stats.free_device_bytes;
  report.cache_bytes_per_token = stats.cache_bytes_per_token;
  uint64_t seed = 0;
  const auto keep = [&](Result<StepBenchRow> row) -> Status {
    DSV4_RETURN_IF_ERROR(row.status());
    if (on_row) on_row(*row);
    report.rows.push_back(std::move(*row));
    return ok_status();
  };
  for (const int64_t tokens : options.prompts) DSV4_RETURN_IF_ERROR(keep(bench_prompt(engine, tokens, options.prompt_runs, &seed)));
  for (const DecodeCase& c : options.decodes) DSV4_RETURN_IF_ERROR(keep(bench_decode(engine, c, options.steps, &seed)));
  return report;
}

std::string to_text(const StepBenchRow& r) {
  const std::string times =
      fmt::format("{:9.3f} ms (min {:.3f}, max {:.3f}, {} times)", 1e3 * r.median_seconds, 1e3 * r.min_seconds, 1e3 * r.max_seconds, r.count);
  if (r.kind == "prompt") return fmt::format("prompt of {:>7}:            {} {:10.1f} tok/s", r.tokens, times, r.tokens_per_second);
  return fmt::format("decode {:>3} rows at {:>7}:    {} {:10.1f} tok/s, host {:.0f} us a step{}", r.rows, r.tokens, times, r.tokens_per_second,
                     1e6 * r.host_seconds, r.kernels > 0 ? fmt::format(", {} kernels", r.kernels) : "");
}

std::string to_json(const StepBenchReport& r) {
  Json rows = Json::array();
  for (const StepBenchRow& row : r.rows) {
    rows.push_back({{"kind", row.kind},
                    {"rows", row.rows},
                    {"tokens", row.tokens},
                    {"count", row.count},
                    {"min_seconds", row.min_seconds},
                    {"median_seconds", row.median_seconds},
                    {"max_seconds", row.max_seconds},
                    {"tokens_per_second", row.tokens_per_second},
                    {"host_seconds", row.host_seconds},
                    {"kernels", row.kernels}});
  }
  const Json out = {{"kind", "dsv4-steps"},
                    {"manifest", to_json_value(r.manifest)},
                    {"weight_bytes", r.weight_bytes},
                    {"cache_bytes", r.cache_bytes},
                    {"scratch_bytes", r.scratch_bytes},
                    {"cache_tokens", r.cache_tokens},
                    {"free_device_bytes", r.free_device_bytes},
                    {"cache_bytes_per_token", r.cache_bytes_per_token},
                    {"rows", std::move(rows)}};
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dsv4
