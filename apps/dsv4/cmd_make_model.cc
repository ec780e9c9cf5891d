// dsv4 make-model MODEL DIR [--layers N] [--seed S] [--shard-bytes N] [--with-tokenizer]: writes a synthetic model to disk.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "checkpoint/make_model.h"
#include "command.h"
#include "progress_bar.h"

namespace dsv4 {
namespace {

struct MakeModelFlags {
  MakeModelOptions options;
  std::string directory;
  bool with_tokenizer = false;
};

void run_make_model(MakeModelFlags& flags, CommandContext& context) {
  if (flags.with_tokenizer) flags.options.text_files_from = context.default_model;
  Status status;
  {
    ProgressBar bar(true);
    flags.options.progress = bar.sink();
    status = make_model(flags.options, flags.directory);
  }
  if (!status.ok()) return report_error(context, "make-model", status);
  std::printf("%s written to %s\n", flags.options.model.c_str(), flags.directory.c_str());
}

}  // namespace

void add_make_model_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<MakeModelFlags>();
  CLI::App* command = app.add_subcommand("make-model", "Write a synthetic model to disk in the published layout");
  command->add_option("model", flags->options.model, "synthetic:flash, synthetic:k160 or synthetic:tiny")->required();
  command->add_option("directory", flags->directory, "Directory to write: new or empty")->required();
  command->add_option("--layers", flags->options.num_layers, "Write the first N layers only")->check(CLI::PositiveNumber);
  command->add_option("--seed", flags->options.seed, "Seed of the weights")->capture_default_str();
  command->add_option("--shard-bytes", flags->options.shard_bytes, "Tensor bytes per shard")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_flag("--with-tokenizer", flags->with_tokenizer, "Copy tokenizer and prompt encoding of the default model (same vocabulary only)");
  command->callback([flags, &context] { run_make_model(*flags, context); });
}

}  // namespace dsv4
