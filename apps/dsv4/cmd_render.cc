// dsv4 render: messages to the prompt that the model reads.
#include <CLI/CLI.hpp>

#include <iostream>
#include <iterator>
#include <memory>

#include "base/file.h"
#include "command.h"
#include "text/text_rows.h"

namespace dsv4 {
namespace {

struct Flags {
  std::string model;
  std::string file;
  std::string jsonl;
  std::string thinking_mode = "chat";
  bool keep_thinking = false;
  std::string reasoning_effort;
};

Result<std::string> run(const Flags& flags) {
  RenderOptions defaults;
  DSV4_ASSIGN_OR_RETURN(defaults.thinking_mode, parse_thinking_mode(flags.thinking_mode));
  defaults.drop_thinking = !flags.keep_thinking;
  defaults.reasoning_effort = flags.reasoning_effort;
  DSV4_ASSIGN_OR_RETURN(const PromptEncoder encoder, PromptEncoder::load(flags.model));
  if (!flags.jsonl.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::string rows, read_file(flags.jsonl));
    return map_json_lines(rows, flags.jsonl, [&](std::string_view row, const std::string& name) { return render_row(encoder, row, defaults, name); });
  }
  std::string request;
  std::string name = "standard input";
  if (!flags.file.empty()) {
    name = flags.file;
    DSV4_ASSIGN_OR_RETURN(request, read_file(flags.file));
  } else {
    request.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  return render_request(encoder, request, defaults, name);
}

}  // namespace

void add_render_command(CLI::App& app, CommandContext& context) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("render", "Turn chat messages into the prompt: its bytes for one request, {\"prompt\"} for each JSON line");
  command->add_option("--model", flags->model, "Model directory; its encoding/encoding_dsv4.py is read (default: the shipped model)");
  CLI::Option* file = command->add_option("--file", flags->file, "Read one request {\"messages\": [...], ...} from FILE instead of standard input");
  CLI::Option* jsonl = command->add_option("--jsonl", flags->jsonl, "Read one request a line and write {\"prompt\": ...} lines");
  command->add_option("--thinking-mode", flags->thinking_mode, "chat or thinking, for requests that do not say (default: chat)");
  command->add_flag("--keep-thinking", flags->keep_thinking, "Keep reasoning of earlier turns, for requests that do not say");
  command->add_option("--reasoning-effort", flags->reasoning_effort, "Effort, for requests that do not say (default: the model's own)");
  file->excludes(jsonl);
  command->callback([flags, &context] {
    if (flags->model.empty()) flags->model = context.default_model;
    const Result<std::string> out = run(*flags);
    if (!out.ok()) return report_error(context, "render", out.status());
    std::cout << *out << std::flush;
  });
}

}  // namespace dsv4
