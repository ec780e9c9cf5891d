// The dsv4 command line: subcommands register themselves, each from its own file.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "command.h"

namespace dsv4 {
namespace {

// models/dsv4-tiny beside the working directory or above the program's own place (a build folder inside the source tree).
std::string find_default_model() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path shipped = fs::path("models") / "dsv4-tiny";
  if (fs::exists(shipped / "config.json", error)) return shipped.string();
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (int up = 0; up < 6 && !folder.empty(); ++up, folder = folder.parent_path()) {
    if (fs::exists(folder / shipped / "config.json", error)) return (folder / shipped).string();
  }
  return shipped.string();
}

int exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return 0;
    case StatusCode::kInvalidArgument:
    case StatusCode::kInvalidData:
    case StatusCode::kNotFound:
    case StatusCode::kUnsupported:
    case StatusCode::kResourceLimit: return 2;
    default: return 1;
  }
}

int run(int argc, char** argv) {
  CommandContext context;
  context.default_model = find_default_model();
  set_log_sink([](LogLevel level, std::string_view message) {
    if (level >= LogLevel::kWarning) fmt::print(stderr, "dsv4: {}\n", message);
  });

  CLI::App app("dsv4: DeepSeek V4 Flash in its native precision", "dsv4");
  app.require_subcommand(1);
  app.set_version_flag("--version", "dsv4 0.1.0");
  add_run_command(app, context);
  add_chat_command(app, context);
  add_serve_command(app, context);
  add_inspect_command(app, context);
  add_make_model_command(app, context);
  add_tokenize_command(app, context);
  add_render_command(app, context);
  add_parse_command(app, context);
  add_probe_command(app, context);
  add_canary_command(app, context);
  add_verify_command(app, context);
  add_triage_command(app, context);
  add_profile_command(app, context);
  CLI::App* bench = app.add_subcommand("bench", "Measurements")->require_subcommand(1);
  add_bench_commands(*bench, context);
  add_bench_serve_command(*bench, context);
  add_bench_steps_command(*bench, context);
  add_bench_cpu_command(*bench, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "dsv4: {}\n", error.what());
    return 2;
  }
  return context.exit_code;
}

}  // namespace

void report_error(CommandContext& context, const std::string& command, const Status& status) {
  fmt::print(stderr, "dsv4 {}: {}\n", command, status.message());
  context.exit_code = exit_code_of(status.code());
}

}  // namespace dsv4

int main(int argc, char** argv) {
  try {
    return dsv4::run(argc, argv);
  } catch (const std::exception& error) {  // memory exhausted, or a library we call threw
    fmt::print(stderr, "dsv4: {}\n", error.what());
    return 1;
  }
}
