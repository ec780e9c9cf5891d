// dsv4 bench serve: load on a running server, and what it makes of it.
#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/file.h"
#include "command.h"
#include "server/load/load_report.h"

namespace dsv4 {
namespace {

struct Flags {
  LoadTarget target;
  LoadOptions load;
  LoadGoals goals;
  std::string prompt_tokens = "64", answer_tokens = "32";
  int64_t check = 4;
  bool json = false;
  std::string output, plot;
};

// Requests alone and under load must give the same text: a server that mixes requests up is not worth timing.
Status check_answers(const Flags& flags, const std::vector<LoadRequest>& plan, const std::vector<LoadResult>& results) {
  int64_t checked = 0;
  for (size_t i = 0; i < plan.size() && checked < flags.check; ++i) {
    if (results[i].finish != "length" && results[i].finish != "stop") continue;
    ++checked;
    const LoadResult alone = run_one(flags.target, plan[i]);
    if (alone.finish == "error") return io_error("request " + std::to_string(i) + " failed when it was repeated alone: " + alone.error);
    if (alone.text != results[i].text) return invalid_data("request " + std::to_string(i) + " got another answer alone than under load");
  }
  if (checked == 0 && flags.check > 0) return invalid_data("no request was completed");
  return ok_status();
}

Status run(Flags& flags) {
  DSV4_ASSIGN_OR_RETURN(flags.load.prompt_tokens, parse_length_mix(flags.prompt_tokens, "--prompt-tokens"));
  DSV4_ASSIGN_OR_RETURN(flags.load.answer_tokens, parse_length_mix(flags.answer_tokens, "--answer-tokens"));
  DSV4_ASSIGN_OR_RETURN(const ServerFacts facts, ask_server(flags.target));
  if (flags.load.vocab_size == 0) flags.load.vocab_size = facts.vocab_size;
  if (flags.load.vocab_size < 2) return invalid_argument("the server does not tell its vocabulary's size: give --vocab-size");
  const std::vector<LoadRequest> plan = plan_load(flags.load);
  DSV4_ASSIGN_OR_RETURN(const std::vector<LoadResult> results, run_load(flags.target, plan, flags.load));
  const LoadSummary summary = summarize(results, flags.goals);
  const std::string json = report_json(summary, flags.load, flags.target, facts);
  fmt::print("{}", flags.json ? json : report_text(summary));
  std::fflush(stdout);
  if (!flags.output.empty()) DSV4_RETURN_IF_ERROR(write_file_atomic(flags.output, json));
  if (!flags.plot.empty()) DSV4_RETURN_IF_ERROR(write_file_atomic(flags.plot, report_svg(results)));
  if (summary.failed > 0) return io_error(fmt::format("{} of {} requests failed; the first: {}", summary.failed, summary.requests, summary.errors.front()));
  return check_answers(flags, plan, results);
}

}  // namespace

void add_bench_serve_command(CLI::App& bench, CommandContext& context) {
  const auto flags = std::make_shared<Flags>();
  LoadOptions& load = flags->load;
  CLI::App* command = bench.add_subcommand("serve", "Send a running server load over HTTP, and measure latencies and throughput");
  command->add_option("--url", flags->target.url, "the server")->capture_default_str();
  command->add_option("--api-key", flags->target.api_key, "its key");
  command->add_option("--model", flags->target.model, "the model's name there (default: the server's own)");
  command->add_option("--requests,-n", load.num_requests, "requests in all")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--concurrency,-c", load.concurrency, "closed loop: streams that each send the next request when the last one ended")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--rate", load.rate, "open loop instead: requests per second, at random times")->check(CLI::PositiveNumber);
  command->add_option("--prompt-tokens", flags->prompt_tokens, "lengths and shares: 64, or 64:0.7,1024:0.3, or 10-50")->capture_default_str();
  command->add_option("--answer-tokens", flags->answer_tokens, "the same for answers")->capture_default_str();
  command->add_option("--shared-prefix", load.shared_prefix_tokens, "tokens that all prompts begin with")->capture_default_str()->check(CLI::NonNegativeNumber);
  command->add_option("--cancel", load.cancel_share, "share of requests that the client leaves in the middle")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--vocab-size", load.vocab_size, "prompts are random token ids below this (default: as the server says)");
  command->add_option("--seed", load.seed, "of lengths, prompts and times")->capture_default_str();
  command->add_option("--goal-first-token", flags->goals.first_token_seconds, "seconds; requests within the goals count as good");
  command->add_option("--goal-per-token", flags->goals.per_token_seconds, "seconds");
  command->add_option("--check", flags->check, "requests that are repeated alone afterwards and must get the same answer")->capture_default_str();
  command->add_flag("--json", flags->json, "print the figures as JSON");
  command->add_option("--output,-o", flags->output, "write them to a file as JSON");
  command->add_option("--plot", flags->plot, "write the latencies' distribution to a file as SVG");
  command->callback([flags, &context] {
    if (const Status status = run(*flags); !status.ok()) report_error(context, "bench serve", status);
  });
}

}  // namespace dsv4
