// dsv4 run: plain completion of a text or of token ids, streamed.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "engine_flags.h"
#include "sampling_flags.h"

namespace dsv4 {
namespace {

struct RunFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string prompt, file;
  std::vector<int32_t> tokens;
  int32_t logprobs = -1;
  bool json = false;
  bool special = false;
  bool no_bos = false;
};

Result<std::vector<int32_t>> prompt_ids(const RunFlags& flags, const Engine& engine) {
  if (!flags.tokens.empty()) return flags.tokens;
  std::string text = flags.prompt;
  if (!flags.file.empty()) {
    DSV4_ASSIGN_OR_RETURN(text, read_file(flags.file));
  }
  if (engine.tokenizer() == nullptr) return invalid_argument("model " + flags.engine.model + " has no tokenizer.json: give --tokens");
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids, engine.tokenizer()->encode(text));
  const int32_t bos = engine.config().bos_token_id;
  if (!flags.no_bos && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
  return ids;
}

Json to_json(const RunFlags& flags, const std::vector<int32_t>& prompt, const Generation& g, double seconds) {
  Json out;
  out["model"] = flags.engine.model;
  out["prompt_tokens"] = prompt;
  out["tokens"] = g.tokens;
  out["text"] = g.text;
  out["finish_reason"] = finish_reason_name(g.finish);
  out["seed"] = g.outputs.back().seed;
  if (flags.logprobs >= 0) {
    Json rows = Json::array();
    for (const TokenOutput& o : g.outputs) {
      if (!o.logprob) continue;
      Json top = Json::array();
      for (const TokenLogprob& t : o.top_logprobs) top.push_back({{"token", t.token}, {"logprob", t.logprob}});
      rows.push_back({{"token", o.logprob->token}, {"logprob", o.logprob->logprob}, {"top", top}});
    }
    out["logprobs"] = rows;
  }
  out["seconds"] = seconds;
  return out;
}

Status run(const RunFlags& flags) {
  DSV4_ASSIGN_OR_RETURN(Request request, make_request(flags.sampling));
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, make_engine(flags.engine));
  const std::unique_ptr<Validator> validator = make_validator(flags.engine, *engine);
  DSV4_ASSIGN_OR_RETURN(request.prompt, prompt_ids(flags, *engine));
  request.num_logprobs = flags.logprobs;
  request.skip_special = !flags.special;
  const std::vector<int32_t> prompt = request.prompt;

  const auto start = std::chrono::steady_clock::now();
  Generation g;
  Status error;
  DSV4_RETURN_IF_ERROR(engine
                           ->submit(std::move(request),
                                    [&](const TokenOutput& o) {
                                      if (!flags.json) {
                                        std::fwrite(o.text.data(), 1, o.text.size(), stdout);
                                        if (engine->tokenizer() == nullptr && o.token >= 0) fmt::print("{} ", o.token);
                                        std::fflush(stdout);
                                      }
                                      if (o.token >= 0) g.tokens.push_back(o.token);
                                      g.text += o.text;
                                      g.finish = o.finish;
                                      g.outputs.push_back(o);
                                      error = o.error;
                                    })
                           .status());
  while (!engine->idle()) DSV4_RETURN_IF_ERROR(engine->step());
  DSV4_RETURN_IF_ERROR(error);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (flags.json) {
    fmt::print("{}\n", to_json(flags, prompt, g, seconds).dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("\n");
  }
  return ok_status();
}

}  // namespace

void add_run_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Complete a text or token ids");
  add_engine_flags(*command, context, &flags->engine);
  add_validate_flags(*command, &flags->engine);
  add_sampling_flags(*command, &flags->sampling);
  auto* source = command->add_option_group("prompt", "where the prompt comes from");
  source->add_option("--prompt,-p", flags->prompt, "the text");
  source->add_option("--file,-f", flags->file, "a file with the text");
  source->add_option("--tokens", flags->tokens, "token ids, separated by commas")->delimiter(',');
  source->require_option(1);
  command->add_option("--logprobs", flags->logprobs, "with --json: the n best tokens of each step");
  command->add_flag("--json", flags->json, "one JSON object instead of the text");
  command->add_flag("--special", flags->special, "show special tokens in the text");
  command->add_flag("--no-bos", flags->no_bos, "do not put the beginning-of-sentence token first");
  command->callback([flags, &context] {
    if (Status status = run(*flags); !status.ok()) report_error(context, "run", status);
  });
}

}  // namespace dsv4
