// dsv4 verify accuracy, logprobs and suite.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>

#include "base/file.h"
#include "command.h"
#include "engine_factory.h"
#include "verify/accuracy.h"
#include "verify/golden.h"
#include "verify/logprobs.h"
#include "verify/prompts.h"
#include "verify/suite.h"

namespace dsv4 {
namespace {

struct AccuracyFlags {
  EngineFlags engine;
  std::string against = "qat", text, json, svg;
  int64_t max_tokens = 256;
};

// The flags of the reference: its own backend, a float32 cache.
EngineFlags reference_flags(EngineFlags flags, const std::string& arithmetic) {
  flags.device = {};
  flags.device.backend = "reference";
  flags.arithmetic = arithmetic;
  flags.cache = "f32";
  return flags;
}

// Every check that keeps all logits needs room for a chunk of them.
EngineFlags with_all_logits(EngineFlags flags) {
  flags.engine.max_seqs = 1;
  flags.engine.prefix_states = 0;
  if (flags.engine.prefill_chunk == 0) flags.engine.prefill_chunk = 256;
  flags.engine.max_logits_rows = flags.engine.prefill_chunk + 1;
  if (flags.engine.max_context_tokens == 0) flags.engine.max_context_tokens = 4096;
  return flags;
}

// A golden file instead of a running reference: logits, hidden states and greedy answers are compared, by the golden bounds.
Status run_against_golden(const AccuracyFlags& flags, CommandContext& context) {
  if (!flags.svg.empty()) return invalid_argument("--svg needs --against exact or qat: a golden file has no tensors of the layers' parts");
  DSV4_ASSIGN_OR_RETURN(const GoldenFile golden, GoldenFile::open(flags.against));
  GoldenOptions options;
  if (flags.engine.engine.prefill_chunk > 0) options.prefill_chunk = flags.engine.engine.prefill_chunk;
  DSV4_ASSIGN_OR_RETURN(const GoldenReport report, verify_golden(golden, factory_of(flags.engine), options));
  for (const GoldenGroup& group : report.groups) fmt::print("{}\n", to_text(group));
  fmt::print("{}\n", report.passed ? "PASSED" : "FAILED");
  DSV4_RETURN_IF_ERROR(write_optional(flags.json, to_json(report)));
  if (!report.passed) context.exit_code = 1;
  return ok_status();
}

Status run_accuracy(const AccuracyFlags& flags, CommandContext& context) {
  if (flags.against != "exact" && flags.against != "qat") return run_against_golden(flags, context);
  const EngineFlags ours = with_all_logits(flags.engine), theirs = with_all_logits(reference_flags(flags.engine, flags.against));
  AccuracyOptions options;
  {
    DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(ours));  // for its tokenizer
    DSV4_ASSIGN_OR_RETURN(options.tokens, evaluation_tokens(*engine, flags.text, flags.max_tokens));
    if (engine->tokenizer() != nullptr) {
      for (const char* message : {"What is 512 + 561?", "Tell me a story about an otter and a lantern.", "What is the capital of France?"}) {
        DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, encode_prompt(*engine, {message, {}}));
        options.prompts.push_back(std::move(prompt));
      }
    }
  }
  const AccuracyBounds bounds = flags.against == "exact" ? bounds_against_exact() : bounds_against_qat();
  DSV4_ASSIGN_OR_RETURN(const AccuracyReport report, measure_accuracy([&] { return make_engine(ours); }, [&] { return make_engine(theirs); }, options, bounds));
  fmt::print("{}", to_text(report));
  DSV4_RETURN_IF_ERROR(write_optional(flags.json, to_json(report)));
  DSV4_RETURN_IF_ERROR(write_optional(flags.svg, to_svg(report)));
  if (!report.passed) context.exit_code = 1;
  return ok_status();
}

struct LogprobFlags {
  EngineFlags engine;
  std::string text, record, against, json;
  std::string with_model, with_backend, with_arithmetic, with_cache;
  LogprobBounds bounds;
  int64_t positions = kLogprobPositions;

  bool has_b() const { return !(against.empty() && with_model.empty() && with_backend.empty() && with_arithmetic.empty() && with_cache.empty()); }
};

Result<LogprobRecord> record(const EngineFlags& flags, const LogprobFlags& all) {
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(with_all_logits(flags)));
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, evaluation_tokens(*engine, all.text, all.positions + 1));
  return record_logprobs(*engine, std::move(tokens), fmt::format("{}, {}", flags.arithmetic, flags.cache), all.positions);
}

Status run_logprobs(const LogprobFlags& flags, CommandContext& context) {
  if (!flags.has_b() && flags.record.empty()) {
    return invalid_argument(
        "a second configuration is needed: --with-model, --with-backend, --with-arithmetic, --with-cache or --against; or --record to make one for later");
  }
  DSV4_ASSIGN_OR_RETURN(const LogprobRecord a, record(flags.engine, flags));
  if (!flags.record.empty()) {
    DSV4_RETURN_IF_ERROR(write_file_atomic(flags.record, to_json(a)));
    fmt::print("{} positions written to {}\n", a.rows.size(), flags.record);
    if (!flags.has_b()) return ok_status();
  }
  LogprobRecord b;
  if (!flags.against.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::string text, read_file(flags.against, uint64_t{1} << 28));
    DSV4_ASSIGN_OR_RETURN(b, parse_logprobs(text, flags.against));
  } else {
    EngineFlags other = flags.engine;
    if (!flags.with_model.empty()) other.model = flags.with_model;
    if (!flags.with_backend.empty()) other.device.backend = flags.with_backend;
    if (!flags.with_arithmetic.empty()) other.arithmetic = flags.with_arithmetic;
    if (!flags.with_cache.empty()) other.cache = flags.with_cache;
    DSV4_ASSIGN_OR_RETURN(b, record(other, flags));
  }
  DSV4_ASSIGN_OR_RETURN(const LogprobComparison comparison, compare_logprobs(a, b, flags.bounds));
  fmt::print("{}", to_text(comparison, a, b, flags.bounds));
  DSV4_RETURN_IF_ERROR(write_optional(flags.json, to_json(comparison, a, b)));
  if (!comparison.passed) context.exit_code = 1;
  return ok_status();
}

struct SuiteFlags {
  EngineFlags engine;
  SuiteOptions options;
  std::string json;
  bool list = false;
};

Status run_suite_command(const SuiteFlags& flags, CommandContext& context) {
  if (flags.list) {
    for (const auto& [name, what] : suite_checks()) fmt::print("{:<18} {}\n", name, what);
    return ok_status();
  }
  DSV4_ASSIGN_OR_RETURN(const SuiteReport report, run_suite(factory_of(flags.engine), flags.options, [](const SuiteLine& line) {
                          fmt::print("{}\n", to_text(line));
                          std::fflush(stdout);
                        }));
  fmt::print("{}\n", report.passed ? "PASSED" : "FAILED");
  DSV4_RETURN_IF_ERROR(write_optional(flags.json, to_json(report)));
  if (!report.passed) context.exit_code = 1;
  return ok_status();
}

template <class Flags>
void on_run(CLI::App* command, std::shared_ptr<Flags> flags, CommandContext& context, const char* name, Status (*run)(const Flags&, CommandContext&)) {
  command->callback([flags, &context, name, run] {
    if (const Status status = run(*flags, context); !status.ok()) report_error(context, name, status);
  });
}

}  // namespace

void add_accuracy_commands(CLI::App& verify, CommandContext& context) {
  auto accuracy = std::make_shared<AccuracyFlags>();
  CLI::App* command = verify.add_subcommand("accuracy", "How far from a reference, layer by layer: cache, attention, layers, logits, answers, perplexity");
  add_engine_flags(*command, context, &accuracy->engine);
  command->add_option("MODEL", accuracy->engine.model, "the same as --model");
  command->add_option("--against", accuracy->against, "exact or qat (the reference backend, run beside), or a golden file")->capture_default_str();
  command->add_option("--text", accuracy->text, "file with the text to compare on (default: the model's eval.txt)");
  command->add_option("--tokens", accuracy->max_tokens, "tokens of it")->capture_default_str()->check(CLI::Range(8, 4096));
  command->add_option("--json", accuracy->json, "write the report to this file");
  command->add_option("--svg", accuracy->svg, "write plots per layer to this file");
  on_run(command, accuracy, context, "verify accuracy", run_accuracy);

  auto logprobs = std::make_shared<LogprobFlags>();
  command = verify.add_subcommand("logprobs", "Two configurations over 96 positions: greedy agreement, KL divergence, worst position");
  add_engine_flags(*command, context, &logprobs->engine);
  command->add_option("MODEL", logprobs->engine.model, "the same as --model");
  command->add_option("--with-model", logprobs->with_model, "configuration B: another model");
  command->add_option("--with-backend", logprobs->with_backend, "configuration B: another backend");
  command->add_option("--with-arithmetic", logprobs->with_arithmetic, "configuration B: another arithmetic");
  command->add_option("--with-cache", logprobs->with_cache, "configuration B: another cache");
  command->add_option("--against", logprobs->against, "configuration B: a record made with --record, perhaps elsewhere");
  command->add_option("--record", logprobs->record, "write A's record to this file");
  command->add_option("--text", logprobs->text, "file with the text (default: the model's eval.txt)");
  command->add_option("--min-agreement", logprobs->bounds.agreement, "least share of positions with the same best token")->capture_default_str();
  command->add_option("--max-kl", logprobs->bounds.mean_kl, "most mean KL divergence in nats")->capture_default_str();
  command->add_option("--json", logprobs->json, "write the comparison to this file");
  on_run(command, logprobs, context, "verify logprobs", run_logprobs);

  auto suite = std::make_shared<SuiteFlags>();
  command = verify.add_subcommand("suite", "The regression suite, one line a check; exit 1 when one fails");
  add_engine_flags(*command, context, &suite->engine);
  command->add_option("MODEL", suite->engine.model, "the same as --model");
  command->add_flag("--quick", suite->options.quick, "fewer repetitions: under a minute on the shipped model");
  command->add_option("--soak", suite->options.soak, "run the repetition and batch checks this many times")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--seed", suite->options.seed, "of the orders of arrival")->capture_default_str();
  command->add_option("--only", suite->options.only, "only this check (may be given again)");
  command->add_flag("--list", suite->list, "name the checks and run none");
  command->add_option("--json", suite->json, "write the report to this file");
  on_run(command, suite, context, "verify suite", run_suite_command);
}

}  // namespace dsv4
