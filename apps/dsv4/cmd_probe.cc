// dsv4 probe and dsv4 canary: does this model really generate, and does it still know what it knew?
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "base/file.h"
#include "command.h"
#include "engine_flags.h"
#include "open_device.h"
#include "progress_bar.h"
#include "verify/canary.h"
#include "verify/probe.h"
#include "verify/validate.h"

namespace dsv4 {
namespace {

struct ProbeFlags {
  EngineFlags engine;
  ProbeOptions probe;
  std::string answer;
  std::string report;  // file
  bool json = false;
};

void run_probe_command(ProbeFlags& flags, CommandContext& context) {
  const auto options = engine_options(flags.engine);
  if (!options.ok()) return report_error(context, "probe", options.status());
  if (!flags.answer.empty()) flags.probe.known_answer = flags.answer;
  ProgressBar bar(!flags.engine.quiet && !flags.json);
  std::unique_ptr<Validator> validator;
  ProbePlan plan;
  plan.model = flags.engine.model;
  plan.checkpoint = checkpoint_options(flags.engine, bar.sink());
  plan.engine = *options;
  plan.probe = flags.probe;
  for (const BackendStatus& b : backend_statuses()) plan.environment += fmt::format("{}{} {}", plan.environment.empty() ? "" : ", ", b.name, b.state);
  plan.make_device = [&] { return open_device(flags.engine.device); };
  plan.on_engine = [&](Engine& engine) { validator = make_validator(flags.engine, engine); };
  const ProbeReport report = run_probe(plan, [&](const ProbeStage& stage) {
    // The engine goes with its stage's end.
    if (stage.name == "generate" && stage.seconds >= 0) validator.reset();
    if (flags.json) return;
    fmt::print("{}\n", to_text(stage));
    std::fflush(stdout);
  });
  fmt::print("{}", flags.json ? to_json(report) : to_text(report));
  context.exit_code = report.exit_code();
  if (flags.report.empty()) return;
  if (const Status written = write_file_atomic(flags.report, to_json(report)); !written.ok()) report_error(context, "probe", written);
}

struct CanaryFlags {
  EngineFlags engine;
  std::string file;
  bool json = false;
};

// The file for a model that brings none: beside the shipped model.
std::string default_canaries(const CommandContext& context) { return std::filesystem::path(context.default_model).parent_path() / "canaries-deepseek-v4.json"; }

Status run_canary_command(const CanaryFlags& flags, CommandContext& context) {
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(flags.engine));
  Result<CanaryFile> file = flags.file.empty() ? load_model_canaries(engine->checkpoint().directory()) : load_canaries(flags.file);
  if (flags.file.empty() && file.status().code() == StatusCode::kNotFound) file = load_canaries(default_canaries(context));
  DSV4_RETURN_IF_ERROR(file.status());
  if (!flags.json && !file->verified) fmt::print("note: {} is unverified: nobody has yet seen {} give these answers\n", file->path, file->model);
  DSV4_ASSIGN_OR_RETURN(const CanaryReport report, run_canaries(*engine, *file, [&](const CanaryLine& line) {
                          if (flags.json) return;
                          fmt::print("{}\n", to_text(line));
                          std::fflush(stdout);
                        }));
  fmt::print("{}", flags.json ? to_json(report, *file) : report.passed ? "PASSED\n" : "FAILED\n");
  if (!report.passed) context.exit_code = 1;
  return ok_status();
}

}  // namespace

void add_probe_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<ProbeFlags>();
  CLI::App* command = app.add_subcommand("probe", "Load, generate and judge what came out; the exit code is the verdict (0 only for COHERENT)");
  add_engine_flags(*command, context, &flags->engine);
  command->add_option("model", flags->engine.model, "the same as --model");
  command->add_option("--message", flags->probe.message, "what to ask (default: the model's canaries.json says)");
  command->add_option("--answer", flags->answer, "the known answer: anything else is MISMATCH");
  command->add_option("--tokens", flags->probe.max_new_tokens, "tokens to generate")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--min-tokens", flags->probe.min_tokens, "tokens that an answer needs to be judged coherent")->capture_default_str();
  add_validate_flags(*command, &flags->engine);
  command->add_flag("--json", flags->json, "print one JSON object");
  command->add_option("--report", flags->report, "write the same JSON to this file, besides what is printed");
  command->callback([flags, &context] { run_probe_command(*flags, context); });
}

void add_canary_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<CanaryFlags>();
  CLI::App* command = app.add_subcommand("canary", "Ask questions whose answers are known; exit 1 when one is wrong");
  add_engine_flags(*command, context, &flags->engine);
  command->add_option("model", flags->engine.model, "the same as --model");
  command->add_option("--file", flags->file, "canaries (default: canaries.json of the model, else those of the published V4)");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &context] {
    if (const Status status = run_canary_command(*flags, context); !status.ok()) report_error(context, "canary", status);
  });
}

}  // namespace dsv4
