// dsv4 verify golden: the engine against recorded results.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "command.h"
#include "engine_factory.h"
#include "verify/golden.h"
#include "verify/golden_trace.h"

namespace dsv4 {
namespace {

struct GoldenFlags {
  EngineFlags engine;
  std::string file;
  std::vector<std::string> kinds;
  std::string bounds = "auto";
  int64_t max_tokens = 0;
  bool json = false;
  bool trace = false;
  std::string trace_case;  // empty: every case past 1e-3
};

Result<GoldenOptions> golden_options(const GoldenFlags& flags) {
  GoldenOptions options;
  options.max_tokens = flags.max_tokens;
  if (flags.engine.engine.prefill_chunk > 0) options.prefill_chunk = flags.engine.engine.prefill_chunk;
  for (const std::string& name : flags.kinds) {
    bool known = false;
    for (const GoldenKind kind : {GoldenKind::kExact, GoldenKind::kQat, GoldenKind::kServed}) {
      if (name == golden_kind_name(kind)) {
        options.kinds.push_back(kind);
        known = true;
      }
    }
    if (!known) return invalid_argument("--kind is \"" + name + "\", it must be exact, qat or served");
  }
  if (flags.bounds == "auto") {
    // A model nobody can talk to has random weights: no tokenizer belongs to it.
    CheckpointOptions headers;
    headers.headers_only = true;
    DSV4_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(flags.engine.model, headers));
    const auto tokenizer = checkpoint.directory().empty() ? Result<std::string>(not_found("")) : read_file(checkpoint.directory() + "/tokenizer.json");
    options.weights = tokenizer.ok() ? GoldenWeights::kTrained : GoldenWeights::kRandom;
  } else if (flags.bounds == "trained" || flags.bounds == "random") {
    options.weights = flags.bounds == "trained" ? GoldenWeights::kTrained : GoldenWeights::kRandom;
  } else {
    return invalid_argument("--bounds is \"" + flags.bounds + "\", it must be auto, trained or random");
  }
  return options;
}

// False when a case stays unexplained.
Result<bool> print_trace(const GoldenFile& golden, const GoldenFlags& flags, const std::string& name) {
  TraceOptions options;
  if (flags.engine.engine.prefill_chunk > 0) options.prefill_chunk = flags.engine.engine.prefill_chunk;
  DSV4_ASSIGN_OR_RETURN(const GoldenTrace trace, trace_golden(golden, factory_of(flags.engine), name, options));
  fmt::print("{}", to_text(trace));
  std::fflush(stdout);
  return trace.explained;
}

Status run_golden(const GoldenFlags& flags, CommandContext& context) {
  DSV4_ASSIGN_OR_RETURN(const GoldenFile golden, GoldenFile::open(flags.file));
  if (!flags.trace_case.empty()) {
    DSV4_ASSIGN_OR_RETURN(const bool explained, print_trace(golden, flags, flags.trace_case));
    if (!explained) context.exit_code = 1;
    return ok_status();
  }
  DSV4_ASSIGN_OR_RETURN(const GoldenOptions options, golden_options(flags));
  const auto print = [&](const GoldenLine& line) {
    if (flags.json) return;
    fmt::print("{}\n", to_text(line));
    std::fflush(stdout);
  };
  DSV4_ASSIGN_OR_RETURN(const GoldenReport report, verify_golden(golden, factory_of(flags.engine), options, print));
  if (flags.json) {
    fmt::print("{}", to_json(report));
  } else {
    fmt::print("\n");
    for (const GoldenGroup& group : report.groups) fmt::print("{}\n", to_text(group));
    fmt::print("{}\n", report.passed ? "PASSED" : "FAILED");
    for (const GoldenLine& line : report.lines) {
      const bool wanted = line.error > kGoldenExplainAbove || (line.group == "greedy" && line.first_difference >= 0);
      if (flags.trace && line.kind != GoldenKind::kExact && wanted) DSV4_RETURN_IF_ERROR(print_trace(golden, flags, line.name()).status());
    }
  }
  if (!report.passed) context.exit_code = 1;
  return ok_status();
}

}  // namespace

void add_verify_command(CLI::App& app, CommandContext& context) {
  CLI::App* verify = app.add_subcommand("verify", "Judge the engine: against recorded results, itself, or a reference");
  verify->require_subcommand(1);
  add_accuracy_commands(*verify, context);
  auto flags = std::make_shared<GoldenFlags>();
  CLI::App* golden = verify->add_subcommand("golden", "Compare with a golden file, one line a case; exit 1 past the bounds");
  golden->add_option("file", flags->file, "golden file (safetensors)")->required();
  add_engine_flags(*golden, context, &flags->engine);
  golden->add_option("--kind", flags->kinds, "compare only exact, qat or served (default: all that the file has)");
  golden->add_option("--bounds", flags->bounds, "trained or random weights (auto: random when the model has no tokenizer)")->capture_default_str();
  golden->add_option("--max-tokens", flags->max_tokens, "leave out cases longer than this; 0 = none");
  golden->add_flag("--json", flags->json, "print one JSON object");
  golden->add_flag("--trace", flags->trace, "explain every case past 1e-3 and every greedy answer that differs: which value stood on a rounding tie");
  golden->add_option("--trace-case", flags->trace_case, "explain only this case, e.g. served/logits/3; exit 1 when it stays unexplained");
  golden->callback([flags, &context] {
    if (const Status status = run_golden(*flags, context); !status.ok()) report_error(context, "verify golden", status);
  });
}

}  // namespace dsv4
