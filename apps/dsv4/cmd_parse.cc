// dsv4 parse: a model's answer to reasoning, content and tool calls.
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
  bool tolerant = false;
};

Result<std::string> run(const Flags& flags) {
  ParseRowOptions options;
  DSV4_ASSIGN_OR_RETURN(options.thinking_mode, parse_thinking_mode(flags.thinking_mode));
  options.tolerant = flags.tolerant;
  DSV4_ASSIGN_OR_RETURN(const PromptEncoder encoder, PromptEncoder::load(flags.model));
  if (!flags.jsonl.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::string rows, read_file(flags.jsonl));
    return map_json_lines(rows, flags.jsonl, [&](std::string_view row, const std::string& name) { return parse_row(encoder.markup(), row, options, name); });
  }
  std::string text;
  if (!flags.file.empty()) {
    DSV4_ASSIGN_OR_RETURN(text, read_file(flags.file));
  } else {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  DSV4_ASSIGN_OR_RETURN(const std::string message, parse_text(encoder.markup(), text, options));
  return message + "\n";
}

}  // namespace

void add_parse_command(CLI::App& app, CommandContext& context) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("parse", "Turn a completion into {\"message\": ...}: reasoning, content and tool calls");
  command->add_option("--model", flags->model, "Model directory; its encoding/encoding_dsv4.py is read (default: the shipped model)");
  CLI::Option* file = command->add_option("--file", flags->file, "Read the completion from FILE, byte for byte, instead of standard input");
  CLI::Option* jsonl = command->add_option(
      "--jsonl", flags->jsonl, "Read {\"text\": ..., \"thinking_mode\": ...} lines; a line the strict reading refuses gives {\"strict_error\":true}");
  command->add_option("--thinking-mode", flags->thinking_mode, "chat or thinking, for lines that do not say (default: chat)");
  command->add_flag("--tolerant", flags->tolerant, "Read as serving does: any text has a message, cut and damaged calls are recovered");
  file->excludes(jsonl);
  command->callback([flags, &context] {
    if (flags->model.empty()) flags->model = context.default_model;
    const Result<std::string> out = run(*flags);
    if (!out.ok()) return report_error(context, "parse", out.status());
    std::cout << *out << std::flush;
  });
}

}  // namespace dsv4
