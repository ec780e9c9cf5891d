#include "verify/probe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "base/json.h"
#include "text/utf8_stream.h"
#include "verify/canary.h"
#include "verify/prompts.h"
#include "verify/runs.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kDefaultMessage = "Tell me a short story.";

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The ids to feed; a model without a tokenizer gets arbitrary ones.
Result<std::vector<int32_t>> probe_prompt(const Engine& engine, const ProbeOptions& options) {
  if (engine.tokenizer() == nullptr) {
    if (!options.message.empty()) return unsupported("probe: model " + engine.checkpoint().model() + " has no tokenizer.json, so it cannot be asked in words");
    std::vector<int32_t> ids;
    for (int32_t i = 1; i <= 8; ++i) ids.push_back(static_cast<int32_t>(i % engine.config().vocab_size));
    return ids;
  }
  std::string message = options.message;
  if (message.empty()) {
    const auto canaries = load_model_canaries(engine.checkpoint().directory());
    if (!canaries.ok() && canaries.status().code() != StatusCode::kNotFound) return canaries.status();
    message = canaries.ok() && !canaries->probe_message.empty() ? canaries->probe_message : kDefaultMessage;
  }
  return encode_prompt(engine, {message, {}});
}

}  // namespace

Result<ProbeOutput> probe_engine(Engine& engine, const ProbeOptions& options) {
  const auto start = Clock::now();
  ProbeOutput out;
  DSV4_ASSIGN_OR_RETURN(out.prompt, probe_prompt(engine, options));
  Request request = greedy_request(out.prompt, options.max_new_tokens);
  request.num_logprobs = 0;
  Status error;
  const auto id = engine.submit(std::move(request), [&](const TokenOutput& o) {
    if (o.token >= 0) out.tokens.push_back(o.token);
    if (o.logprob) out.logprobs.push_back(o.logprob->logprob);
    out.finish = o.finish;
    if (o.finish == FinishReason::kError) error = o.error;
  });
  DSV4_RETURN_IF_ERROR(id.status());
  while (out.finish == FinishReason::kNone) {
    if (Status stepped = engine.step(); !stepped.ok()) {
      engine.cancel(*id);  // the sink refers to this frame
      error = stepped;
      break;
    }
  }
  VerdictInput judged;
  judged.tokens = out.tokens;
  judged.logprobs = out.logprobs;
  judged.finish = out.finish;
  judged.bos = engine.config().bos_token_id;
  judged.eos = engine.config().eos_token_id;
  judged.min_tokens = options.min_tokens;
  judged.known_answer = options.known_answer;
  judged.error = error;
  judged.has_text = engine.tokenizer() != nullptr;
  if (judged.has_text) {
    judged.bytes = plain_bytes(*engine.tokenizer(), out.tokens);
    out.text = replace_invalid_utf8(judged.bytes);
    for (const int32_t t : out.tokens) out.token_decode.push_back(replace_invalid_utf8(engine.tokenizer()->token_bytes(t)));
  }
  out.verdict = judge_output(judged);
  out.seconds = seconds_since(start);
  return out;
}

Status check_generates(Engine& engine, const ProbeOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const ProbeOutput out, probe_engine(engine, options));
  if (out.coherent()) return ok_status();
  return numerical_error(fmt::format("probe: {}: {}", verdict_name(out.verdict.verdict), out.verdict.reason));
}

ProbeReport run_probe(const ProbePlan& plan, const std::function<void(const ProbeStage&)>& on_stage) {
  ProbeReport report;
  // Runs one stage; false when it failed.
  const auto stage = [&](const std::string& name, const std::function<Status(std::string * detail)>& body) {
    report.stage_reached = name;
    ProbeStage s;
    s.name = name;
    s.seconds = -1;
    if (on_stage) on_stage(s);
    const auto start = Clock::now();
    s.status = body(&s.detail);
    s.seconds = seconds_since(start);
    if (on_stage) on_stage(s);
    report.stages.push_back(s);
    if (!s.status.ok()) report.verdict = {Verdict::kError, "stage " + name + ": " + s.status.message()};
    return s.status.ok();
  };

  std::unique_ptr<Device> device;
  std::optional<Checkpoint> checkpoint;
  std::unique_ptr<Engine> engine;
  const bool ready = stage("env",
                           [&](std::string* detail) -> Status {
                             DSV4_ASSIGN_OR_RETURN(device, plan.make_device());
                             *detail =
                                 plan.environment + (plan.environment.empty() ? "" : "; ") + "backend " + device->info().backend + ", " + device->info().name;
                             return ok_status();
                           }) &&
                     stage("config",
                           [&](std::string* detail) -> Status {
                             CheckpointOptions headers = plan.checkpoint;
                             headers.headers_only = true;
                             headers.progress = nullptr;
                             DSV4_ASSIGN_OR_RETURN(const Checkpoint opened, Checkpoint::open(plan.model, headers));
                             const ModelConfig& c = opened.config();
                             *detail = fmt::format("{} layers, hidden {}, {} experts, vocabulary {}, identity {}", c.num_layers, c.hidden_dim, c.num_experts,
                                                   c.vocab_size, opened.identity());
                             return ok_status();
                           }) &&
                     stage("load",
                           [&](std::string* detail) -> Status {
                             DSV4_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::open(plan.model, plan.checkpoint));
                             int64_t bytes = 0;
                             for (const TensorEntry& t : opened.tensors()) bytes += t.size_bytes;
                             *detail = fmt::format("{} tensors, {:.3f} GB", opened.tensors().size(), static_cast<double>(bytes) * 1e-9);
                             checkpoint = std::move(opened);
                             return ok_status();
                           }) &&
                     stage("engine", [&](std::string* detail) -> Status {
                       DSV4_ASSIGN_OR_RETURN(engine, Engine::create(std::move(*checkpoint), std::move(device), plan.engine, plan.checkpoint.progress));
                       *detail = fmt::format("cache {:.3f} GB, scratch {:.3f} GB", static_cast<double>(engine->stats().cache_bytes) * 1e-9,
                                             static_cast<double>(engine->stats().scratch_bytes) * 1e-9);
                       report.manifest = make_manifest(*engine, "probe");
                       if (plan.on_engine) plan.on_engine(*engine);
                       return ok_status();
                     });
  if (!ready) return report;
  const bool generated = stage("generate", [&](std::string* detail) -> Status {
    DSV4_ASSIGN_OR_RETURN(report.output, probe_engine(*engine, plan.probe));
    *detail = fmt::format("{} tokens after a prompt of {}", report.output->tokens.size(), report.output->prompt.size());
    return ok_status();
  });
  if (generated) report.verdict = report.output->verdict;
  return report;
}

std::string to_text(const ProbeStage& s) {
  if (s.seconds < 0) return "### STAGE: " + s.name;
  return fmt::format("### STAGE: {} {} in {:.3f} s: {}", s.name, s.status.ok() ? "ok" : "FAILED", s.seconds, s.status.ok() ? s.detail : s.status.message());
}

std::string to_text(const ProbeReport& report) {
  std::string out;
  if (report.output) {
    const ProbeOutput& o = *report.output;
    std::vector<std::string> decoded;
    for (const std::string& t : o.token_decode) decoded.push_back(python_repr(t));
    out += fmt::format("TOKEN_IDS: [{}]\n", fmt::join(o.tokens, ", "));
    out += fmt::format("FINISH_REASON: {}\n", finish_reason_name(o.finish));
    out += fmt::format("TOKEN_DECODE: [{}]\n", fmt::join(decoded, ", "));
    out += fmt::format("OUTPUT_REPR: {}\n", python_repr(o.text));
    out += fmt::format("OUTPUT: {}\n", o.text);
  }
  return out + fmt::format("VERDICT: {} ({})\n", verdict_name(report.verdict.verdict), report.verdict.reason);
}

std::string to_json(const ProbeReport& report) {
  Json stages = Json::array();
  for (const ProbeStage& s : report.stages) {
    stages.push_back({{"name", s.name}, {"ok", s.status.ok()}, {"seconds", s.seconds}, {"detail", s.status.ok() ? s.detail : s.status.message()}});
  }
  Json out = {{"stages", std::move(stages)}, {"stage_reached", report.stage_reached}};
  if (report.manifest) out["manifest"] = to_json_value(*report.manifest);
  if (report.output) {
    const ProbeOutput& o = *report.output;
    out["prompt_tokens"] = o.prompt;
    out["token_ids"] = o.tokens;
    out["finish_reason"] = finish_reason_name(o.finish);
    out["token_decode"] = o.token_decode;
    out["logprobs"] = o.logprobs;
    out["output"] = o.text;
    out["generate_seconds"] = o.seconds;
  }
  out["verdict"] = verdict_name(report.verdict.verdict);
  out["reason"] = report.verdict.reason;
  out["exit_code"] = report.exit_code();
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dsv4
