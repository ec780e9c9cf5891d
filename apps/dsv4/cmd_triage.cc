// dsv4 triage: the first real blocker in the logs of a job.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "command.h"
#include "verify/triage.h"

namespace dsv4 {
namespace {

struct TriageFlags {
  std::vector<std::string> files;
  bool json = false;
};

Status run_triage(const TriageFlags& flags, CommandContext& context) {
  std::vector<std::string> texts;
  for (const std::string& path : flags.files) {
    DSV4_ASSIGN_OR_RETURN(std::string text, read_file(path));
    texts.push_back(std::move(text));
  }
  std::vector<LogFile> files;
  for (size_t i = 0; i < texts.size(); ++i) files.push_back({flags.files[i], texts[i]});
  const TriageReport report = triage(files);
  fmt::print("{}", flags.json ? to_json(report) : to_text(report));
  if (report.outcome != TriageOutcome::kSuccess) context.exit_code = 1;
  return ok_status();
}

}  // namespace

void add_triage_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<TriageFlags>();
  CLI::App* command = app.add_subcommand("triage", "Find the first real blocker in the logs of one job; exit 0 only when its tokens are sound");
  command->add_option("logs", flags->files, "log files of one job, in order: program, launcher, sacct")->required();
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &context] {
    if (const Status status = run_triage(*flags, context); !status.ok()) report_error(context, "triage", status);
  });
}

}  // namespace dsv4
