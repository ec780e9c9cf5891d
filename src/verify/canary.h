// Canaries: short questions whose answers are known. They show that a model still does what it could; they do not show that it computes
// exactly (a checkpoint whose wo_a scales are transposed may pass them all: that is what verify logprobs is for).
//
// File (JSON):
//   {"model": "...", "verified": true, "probe": "message for the probe",
//    "canaries": [{"name": "arithmetic", "steps": [{"message": "What is 512 + 561?", "answer": "1073"}, ...]},
//                 {"name": "json", "steps": [{"message": "...", "json": {...}}]},
//                 {"name": "tool", "steps": [{"message": "...", "tools": [{...}], "call": {"name": "...", "arguments": {...}}}]},
//                 {"name": "capital", "steps": [{"message": "...", "contains": "Paris"}]}]}
// Steps of a canary run one after another in one engine, so that the same question asked again after another must get its own answer.
// Per step exactly one of: answer (the whole text, without surrounding blank space), contains, json (the text parses to this value; the
// order of members is free), call (the answer is this one tool call). max_tokens (64) and tools are optional.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "text/chat_markup.h"
#include "verify/manifest.h"

namespace dsv4 {

enum class CanaryKind : uint8_t { kAnswer, kContains, kJson, kCall };

struct CanaryStep {
  std::string message;
  CanaryKind kind = CanaryKind::kAnswer;
  std::string want;  // text, or JSON text
  std::vector<std::string> tool_schemas;
  int64_t max_tokens = 64;
};

struct Canary {
  std::string name;
  std::vector<CanaryStep> steps;
};

struct CanaryFile {
  std::string path;
  std::string model;
  bool verified = false;  // somebody has seen the model give these answers
  std::string probe_message;
  std::vector<Canary> canaries;
};

// Errors name the file, the place and the rule.
Result<CanaryFile> parse_canaries(std::string_view json_text, const std::string& path);
Result<CanaryFile> load_canaries(const std::string& path);
// MODEL_DIR/canaries.json. kNotFound without it.
Result<CanaryFile> load_model_canaries(const std::string& model_dir);

struct CanaryLine {
  std::string canary;
  int64_t step = 0;
  int64_t num_steps = 0;
  std::string message;
  std::string want;
  std::string got;
  bool passed = false;
  std::string fault;  // "" when passed
};

struct CanaryReport {
  Manifest manifest;
  std::vector<CanaryLine> lines;
  bool passed = false;
};

// Greedy, one request at a time. A request that ends on a value that is not finite is a failed line. Errors: prompts that cannot be encoded,
// device faults.
Result<CanaryReport> run_canaries(Engine& engine, const CanaryFile& file, const std::function<void(const CanaryLine&)>& on_line = {});

// Why `answer` is not what the step wants; empty when it is. Pure.
std::string canary_fault(const CanaryStep& step, const std::string& answer, const ChatMarkup& markup);

std::string to_text(const CanaryLine& line);
std::string to_json(const CanaryReport& report, const CanaryFile& file);

}  // namespace dsv4
