// dsv4 inspect [MODEL] [--json] [--layers N]: what a checkpoint is and costs, from its headers.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "backends/registry.h"
#include "base/json.h"
#include "checkpoint/inspect.h"
#include "command.h"
#include "model/products.h"

namespace dsv4 {
namespace {

struct InspectFlags {
  std::string model;
  bool json = false;
  int64_t num_layers = -1;
  bool plan = false;
  std::string backend = "gpu";
  std::vector<int64_t> rows{1, 16, 64, 2048};
};

// Every product of a pass: how its weight lies on the device, and which kernel it takes for each count of rows. One line a fact.
Status print_plan(const InspectFlags& flags, const ModelConfig& config) {
  fmt::print("\nkernel plan of backend {}; each product as if alone in its launch\n", flags.backend);
  for (const ModelProduct& p : model_products(config)) {
    const PlannedProduct product{p.n, p.k, p.format, p.rounding, p.experts};
    for (size_t i = 0; i < flags.rows.size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(const PlannedKernel kernel, plan_kernel(flags.backend, product, flags.rows[i]));
      if (i == 0) {
        const std::string where = p.layers > 0 ? fmt::format("{} layers", p.layers) : "once";
        fmt::print("{} {} ({}{}): weight in {}\n", p.call, p.weight, where, p.experts > 0 ? fmt::format(", {} experts", p.experts) : "", kernel.layout);
      }
      fmt::print("    {}\n", kernel.kernel);
    }
  }
  return ok_status();
}

// The Status message again as data: its first line, and the indented lines below it.
std::string faults_to_json(const std::string& model, const Status& status) {
  Json json = {{"model", model}, {"ok", false}, {"error", ""}, {"faults", Json::array()}};
  const std::string& text = status.message();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (begin == 0) {
      json["error"] = text.substr(0, end);
    } else {
      json["faults"].push_back(text.substr(text.find_first_not_of(' ', begin), end - text.find_first_not_of(' ', begin)));
    }
    begin = end + 1;
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void run_inspect(const InspectFlags& flags, CommandContext& context) {
  const std::string& model = flags.model.empty() ? context.default_model : flags.model;
  CheckpointOptions options;
  options.headers_only = true;
  options.num_layers = flags.num_layers;
  const Result<Checkpoint> checkpoint = Checkpoint::open(model, options);
  if (!checkpoint.ok()) {
    report_error(context, "inspect", checkpoint.status());
    if (flags.json) std::fputs(faults_to_json(model, checkpoint.status()).c_str(), stdout);
    return;
  }
  const ModelSummary summary = summarize(*checkpoint);
  std::fputs((flags.json ? summary_to_json(summary) : summary_to_text(summary)).c_str(), stdout);
  if (!flags.plan) return;
  if (const Status status = print_plan(flags, checkpoint->config()); !status.ok()) report_error(context, "inspect", status);
}

}  // namespace

void add_inspect_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "Show what a checkpoint is and costs, from its headers; list all its faults");
  command->add_option("model", flags->model, "Model directory, synthetic:flash, synthetic:k160 or synthetic:tiny (default: the shipped tiny model)");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_option("--layers", flags->num_layers, "Look at the first N layers only")->check(CLI::PositiveNumber);
  command->add_flag("--plan", flags->plan, "Print which kernel each product takes, and the layout of its weight")->excludes("--json");
  command->add_option("--backend", flags->backend, "With --plan: whose kernels")->capture_default_str();
  command->add_option("--rows", flags->rows, "With --plan: rows of a step")->delimiter(',')->capture_default_str()->check(CLI::PositiveNumber);
  command->callback([flags, &context] { run_inspect(*flags, context); });
}

}  // namespace dsv4
