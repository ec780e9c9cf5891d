// dsv4 tokenize: text to token ids.
#include <CLI/CLI.hpp>

#include <iostream>
#include <iterator>
#include <memory>

#include "base/file.h"
#include "base/json.h"
#include "command.h"
#include "text/text_rows.h"

namespace dsv4 {
namespace {

struct Flags {
  std::string model;
  std::string file;
  std::string jsonl;
  bool no_special = false;
};

Result<std::string> run(const Flags& flags) {
  DSV4_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(flags.model + "/tokenizer.json"));
  const EncodeOptions options{.parse_special = !flags.no_special};
  if (!flags.jsonl.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::string rows, read_file(flags.jsonl));
    return map_json_lines(rows, flags.jsonl, [&](std::string_view row, const std::string& name) { return tokenize_row(tokenizer, row, options, name); });
  }
  std::string text;
  if (!flags.file.empty()) {
    DSV4_ASSIGN_OR_RETURN(text, read_file(flags.file));
  } else {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.encode(text, options));
  return Json{{"ids", ids}}.dump() + "\n";
}

}  // namespace

void add_tokenize_command(CLI::App& app, CommandContext& context) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids: {\"ids\":[...]} for standard input, a file, or each JSON line");
  command->add_option("--model", flags->model, "Model directory; its tokenizer.json is read (default: the shipped model)");
  CLI::Option* file = command->add_option("--file", flags->file, "Read the text from FILE, byte for byte, instead of standard input");
  CLI::Option* jsonl = command->add_option("--jsonl", flags->jsonl, "Read one JSON object a line, {\"text\": ...}, and write {\"ids\": [...]} lines");
  command->add_flag("--no-special", flags->no_special, "Treat the text of special and other added tokens as ordinary text");
  file->excludes(jsonl);
  command->callback([flags, &context] {
    if (flags->model.empty()) flags->model = context.default_model;
    const Result<std::string> out = run(*flags);
    if (!out.ok()) return report_error(context, "tokenize", out.status());
    std::cout << *out << std::flush;
  });
}

}  // namespace dsv4
