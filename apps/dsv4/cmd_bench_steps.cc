// dsv4 bench steps: how fast prompts and decode batches are.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "bench/steps.h"
#include "command.h"
#include "engine_flags.h"

namespace dsv4 {
namespace {

struct StepsFlags {
  EngineFlags engine;
  StepBenchOptions options;
  std::vector<std::string> decodes{"1x64"};
  std::string json;
};

Status run_steps(StepsFlags& flags) {
  for (const std::string& text : flags.decodes) {
    DSV4_ASSIGN_OR_RETURN(const DecodeCase c, parse_decode_case(text));
    flags.options.decodes.push_back(c);
  }
  flags.engine.engine = step_bench_engine_options(flags.engine.engine, flags.options);
  const auto start = std::chrono::steady_clock::now();
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(flags.engine));
  const EngineStats stats = engine->stats();
  fmt::print("{} on {}: loaded in {:.2f} s; cache {:.2f} GB for {} tokens, scratch {:.2f} GB\n", flags.engine.model, engine->device().info().name,
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1e-9 * static_cast<double>(stats.cache_bytes),
             engine->options().cache_tokens, 1e-9 * static_cast<double>(stats.scratch_bytes));
  if (stats.free_device_bytes > 0) {
    fmt::print("{:.2f} GB left: room for {:.0f} more tokens of context at {:.0f} bytes\n", 1e-9 * static_cast<double>(stats.free_device_bytes),
               static_cast<double>(stats.free_device_bytes) / stats.cache_bytes_per_token, stats.cache_bytes_per_token);
  }
  flags.options.command = "bench steps";
  DSV4_ASSIGN_OR_RETURN(const StepBenchReport report, run_step_bench(*engine, flags.options, [](const StepBenchRow& row) {
                          fmt::print("{}\n", to_text(row));
                          std::fflush(stdout);
                        }));
  return flags.json.empty() ? ok_status() : write_file_atomic(flags.json, to_json(report));
}

}  // namespace

void add_bench_steps_command(CLI::App& bench, CommandContext& context) {
  auto flags = std::make_shared<StepsFlags>();
  CLI::App* command = bench.add_subcommand("steps", "Time prompts and decode batches of given sizes");
  add_engine_flags(*command, context, &flags->engine);
  command->add_option("--prompts", flags->options.prompts, "prompt lengths to time, separated by commas")->delimiter(',')->check(CLI::PositiveNumber);
  command->add_option("--decode", flags->decodes, "decode batches, ROWSxCONTEXT, separated by commas")->delimiter(',')->capture_default_str();
  command->add_option("--steps", flags->options.steps, "counted steps of a decode batch")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--prompt-runs", flags->options.prompt_runs, "counted runs of a prompt")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--json", flags->json, "write the figures and their manifest to a file");
  command->callback([flags, &context] {
    if (const Status status = run_steps(*flags); !status.ok()) report_error(context, "bench steps", status);
  });
}

}  // namespace dsv4
