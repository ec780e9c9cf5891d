// One subcommand per file: each registers itself on the application and sets context.exit_code from its callback.
#pragma once

#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace dsv4 {

struct CommandContext {
  std::string default_model;  // directory used when --model is not given: the shipped dsv4-tiny
  int exit_code = 0;          // 0 success; 1 the run failed; 2 bad input (files, flags, requests)
};

// Prints "dsv4 COMMAND: MESSAGE" to stderr and sets the exit code the status calls for.
void report_error(CommandContext& context, const std::string& command, const Status& status);

void add_run_command(CLI::App& app, CommandContext& context);
void add_chat_command(CLI::App& app, CommandContext& context);
void add_tokenize_command(CLI::App& app, CommandContext& context);
void add_render_command(CLI::App& app, CommandContext& context);
void add_parse_command(CLI::App& app, CommandContext& context);
void add_inspect_command(CLI::App& app, CommandContext& context);
void add_make_model_command(CLI::App& app, CommandContext& context);
void add_probe_command(CLI::App& app, CommandContext& context);
void add_canary_command(CLI::App& app, CommandContext& context);
void add_bench_serve_command(CLI::App& bench, CommandContext& context);  // `bench` holds all measurements
void add_bench_cpu_command(CLI::App& bench, CommandContext& context);
void add_bench_steps_command(CLI::App& bench, CommandContext& context);
void add_serve_command(CLI::App& app, CommandContext& context);
void add_verify_command(CLI::App& app, CommandContext& context);
void add_accuracy_commands(CLI::App& verify, CommandContext& context);  // of `verify`
void add_triage_command(CLI::App& app, CommandContext& context);
void add_profile_command(CLI::App& app, CommandContext& context);
void add_bench_commands(CLI::App& bench, CommandContext& context);  // of `bench`

}  // namespace dsv4
