// dsv4 bench contract, compare, lab, and dsv4 profile.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "bench/contract.h"
#include "bench/lab.h"
#include "bench/profile.h"
#include "bench/roofline.h"
#include "command.h"
#include "engine_factory.h"

namespace dsv4 {
namespace {

struct ContractFlags {
  EngineFlags engine;
  ContractOptions options;
  bool no_canary = false;
  std::string json;
};

Status run_contract_command(ContractFlags& flags, CommandContext& context) {
  DSV4_ASSIGN_OR_RETURN(const EngineOptions options, engine_options(flags.engine));
  EngineFlags engine_flags = flags.engine;
  engine_flags.engine = contract_engine_options(options);
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(engine_flags));
  flags.options.command = "bench contract";
  flags.options.run_canaries = !flags.no_canary;
  DSV4_ASSIGN_OR_RETURN(const ContractReport report, run_contract(*engine, flags.options, [](const ContractRow& row) {
                          fmt::print("{}\n", to_text(row));
                          std::fflush(stdout);
                        }));
  fmt::print("\n{}", to_text(report));
  DSV4_RETURN_IF_ERROR(write_optional(flags.json, to_json(report)));
  if (report.is_void()) context.exit_code = 1;
  return ok_status();
}

struct CompareFlags {
  std::string a, b;
  std::vector<std::string> vary;
};

// Two files of contract runs, or two of `bench cpu`.
Status run_compare(CompareFlags& flags, CommandContext&) {
  DSV4_ASSIGN_OR_RETURN(const std::string a_text, read_file(flags.a, uint64_t{1} << 28));
  DSV4_ASSIGN_OR_RETURN(const std::string b_text, read_file(flags.b, uint64_t{1} << 28));
  std::string text;
  if (const Result<RooflineReport> roofline = parse_roofline(a_text, flags.a); roofline.ok()) {
    DSV4_ASSIGN_OR_RETURN(const RooflineReport b, parse_roofline(b_text, flags.b));
    DSV4_ASSIGN_OR_RETURN(text, compare_rooflines(*roofline, b, flags.vary));
  } else {
    DSV4_ASSIGN_OR_RETURN(const ContractReport a, parse_contract(a_text, flags.a));
    DSV4_ASSIGN_OR_RETURN(const ContractReport b, parse_contract(b_text, flags.b));
    DSV4_ASSIGN_OR_RETURN(text, compare_contracts(a, b, flags.vary));
  }
  fmt::print("{}", text);
  return ok_status();
}

struct LabFlags {
  EngineFlags engine;
  std::string experiment;
  std::string ledger = "docs/experiments/ledger.jsonl";
  bool dry = false;
};

Status run_lab_command(LabFlags& flags, CommandContext& context) {
  DSV4_ASSIGN_OR_RETURN(const std::string toml, read_file(flags.experiment, uint64_t{1} << 20));
  DSV4_ASSIGN_OR_RETURN(const Experiment experiment, parse_experiment(toml, flags.experiment));
  EngineFlags base = flags.engine;
  if (!experiment.model.empty()) base.model = experiment.model;
  base.engine = contract_engine_options(base.engine);
  const LabFactory factory = [&](const LabSettings& settings) -> Result<std::unique_ptr<Engine>> {
    DSV4_ASSIGN_OR_RETURN(const EngineFlags side, with_settings(base, settings));
    return make_engine(side);
  };
  DSV4_ASSIGN_OR_RETURN(const LabOutcome outcome, run_lab(experiment, factory, [](double a, double b) {
                          fmt::print("A {:9.2f}  B {:9.2f} tok/s\n", a, b);
                          std::fflush(stdout);
                        }));
  fmt::print("\n{}", to_text(outcome));
  if (!outcome.gate.empty()) context.exit_code = 1;
  if (flags.dry) return ok_status();
  DSV4_RETURN_IF_ERROR(append_to_ledger(flags.ledger, outcome));
  DSV4_ASSIGN_OR_RETURN(const std::string ledger, read_file(flags.ledger));
  DSV4_ASSIGN_OR_RETURN(const std::string page, render_ledger(ledger, flags.ledger));
  const std::string path = (std::filesystem::path(flags.ledger).parent_path() / "README.md").string();
  DSV4_RETURN_IF_ERROR(write_file_atomic(path, page));
  fmt::print("appended to {}, rendered to {}\n", flags.ledger, path);
  return ok_status();
}

struct ProfileFlags {
  EngineFlags engine;
  ProfileOptions options;
  std::string json, svg;
};

Status run_profile_command(ProfileFlags& flags, CommandContext&) {
  EngineFlags engine_flags = flags.engine;
  engine_flags.engine = contract_engine_options(engine_flags.engine);
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(engine_flags));
  flags.options.command = "profile";
  DSV4_ASSIGN_OR_RETURN(const ProfileReport report, run_profile(*engine, flags.options));
  fmt::print("{}", to_text(report));
  DSV4_RETURN_IF_ERROR(write_optional(flags.json, to_json(report)));
  return write_optional(flags.svg, to_flame_svg(report));
}

template <class Flags>
void on_run(CLI::App* command, std::shared_ptr<Flags> flags, CommandContext& context, const char* name, Status (*run)(Flags&, CommandContext&)) {
  command->callback([flags, &context, name, run] {
    if (const Status status = run(*flags, context); !status.ok()) report_error(context, name, status);
  });
}

}  // namespace

void add_bench_commands(CLI::App& bench, CommandContext& context) {
  auto contract = std::make_shared<ContractFlags>();
  CLI::App* command = bench.add_subcommand("contract", "12 cold prompts of 65 tokens, 128 new tokens each; row 0 is the headline; exit 1 when the run is void");
  add_engine_flags(*command, context, &contract->engine);
  command->add_option("MODEL", contract->engine.model, "the same as --model");
  command->add_option("--repeats", contract->options.repeats, "more runs of the first prompt, kept apart")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--no-canary", contract->no_canary, "do not ask the canaries");
  command->add_flag("--validate", contract->options.validate, "check every tensor of every step: slow, and no headline");
  command->add_option("--json", contract->json, "write the run, with its manifest, to this file");
  on_run(command, contract, context, "bench contract", run_contract_command);

  auto compare = std::make_shared<CompareFlags>();
  command =
      bench.add_subcommand("compare", "Two runs of one identity, of `bench contract` or `bench cpu`: both, their ratio, and promote, reject or undecided");
  command->add_option("a", compare->a, "run A (JSON)")->required();
  command->add_option("b", compare->b, "run B (JSON)")->required();
  command->add_option("--vary", compare->vary, "identity fields that are meant to differ, separated by commas: commit, option.graph, ...")->delimiter(',');
  on_run(command, compare, context, "bench compare", run_compare);

  auto lab = std::make_shared<LabFlags>();
  command = bench.add_subcommand("lab", "One experiment: A and B interleaved in one process, correctness first; the outcome goes to the ledger");
  command->add_option("experiment", lab->experiment, "experiment file (TOML)")->required();
  add_engine_flags(*command, context, &lab->engine);
  command->add_option("--ledger", lab->ledger, "where outcomes go")->capture_default_str();
  command->add_flag("--dry", lab->dry, "run, but write nothing");
  on_run(command, lab, context, "bench lab", run_lab_command);
}

void add_profile_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* command = app.add_subcommand("profile", "Where a decode step's time goes: per component, against the memory's bandwidth");
  add_engine_flags(*command, context, &flags->engine);
  command->add_option("MODEL", flags->engine.model, "the same as --model");
  command->add_option("--steps", flags->options.steps, "decode steps to measure")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--after", flags->options.context_tokens, "tokens of context before the first")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--json", flags->json, "write the profile to this file");
  command->add_option("--svg", flags->svg, "write a flame-style picture to this file");
  on_run(command, flags, context, "profile", run_profile_command);
}

}  // namespace dsv4
