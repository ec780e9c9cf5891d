// Does this model, on this device, really generate? A probe ends with a verdict about generated tokens; that it was imported, loaded or
// built proves nothing. For the command (all stages), and for a server's readiness (the last stage, on a running engine).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "verify/manifest.h"
#include "verify/verdict.h"

namespace dsv4 {

struct ProbeOptions {
  // What to ask. Empty: the "probe" entry of the model's canaries.json, else "Tell me a short story." (models without a tokenizer: ids
  // 1 to 8 modulo the vocabulary).
  std::string message;
  std::optional<std::string> known_answer;
  int64_t max_new_tokens = 64;
  int64_t min_tokens = 32;
};

struct ProbeOutput {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the chosen tokens
  FinishReason finish = FinishReason::kNone;
  std::vector<std::string> token_decode;  // each token's text, special tokens visible
  std::string text;
  VerdictResult verdict;
  double seconds = 0;

  bool coherent() const { return verdict.verdict == Verdict::kCoherent; }
};

// Generates greedily on an engine that is idle, and judges. Trouble during generation becomes a verdict (ERROR, NONFINITE); the only
// error is a probe that cannot be asked. It leaves the engine idle.
Result<ProbeOutput> probe_engine(Engine& engine, const ProbeOptions& options);

// For readiness checks: ok when the verdict is COHERENT, else kNumerical (or the run's own code) with verdict and reason.
Status check_generates(Engine& engine, const ProbeOptions& options);

// ---- all stages ----

struct ProbeStage {
  std::string name;  // "env", "config", "load", "engine", "generate"
  double seconds = 0;
  Status status;
  std::string detail;  // what was found
};

struct ProbeReport {
  std::vector<ProbeStage> stages;  // up to and including the first that failed
  std::optional<ProbeOutput> output;
  std::optional<Manifest> manifest;  // from stage engine on
  VerdictResult verdict;             // ERROR when a stage failed
  std::string stage_reached;         // the last that was begun

  int exit_code() const { return verdict_exit_code(verdict.verdict); }
};

struct ProbePlan {
  std::string model;
  CheckpointOptions checkpoint;
  EngineOptions engine;
  ProbeOptions probe;
  std::string environment;  // one line for stage env: build, backends
  std::function<Result<std::unique_ptr<Device>>()> make_device;
  // Called with the engine before it generates (to attach a Validator); may be empty.
  std::function<void(Engine&)> on_engine;
};

// `on_stage` sees each stage twice: when it begins (seconds < 0) and when it has ended.
ProbeReport run_probe(const ProbePlan& plan, const std::function<void(const ProbeStage&)>& on_stage = {});

// "### STAGE: load" and, when it has ended, "### STAGE: load ok in 0.12 s: 22 MB".
std::string to_text(const ProbeStage& stage);
// TOKEN_IDS, FINISH_REASON, TOKEN_DECODE, OUTPUT_REPR, OUTPUT, VERDICT, a line each (OUTPUT may be several).
std::string to_text(const ProbeReport& report);
std::string to_json(const ProbeReport& report);

}  // namespace dsv4
