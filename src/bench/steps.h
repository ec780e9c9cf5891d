// How fast the engine's steps are on this model and device: prompts of given lengths, and decode batches of given sizes at given contexts.
// Prompts are seeded random ids, greedy, nothing cached. The first prompt and the first steps of each batch are warm-up and not counted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/manifest.h"

namespace dsv4 {

struct DecodeCase {
  int64_t rows = 1;             // sequences decoded together
  int64_t context_tokens = 64;  // of each, before the first counted step
};

// "16x4096" = 16 rows at a context of 4096. Errors name the text.
Result<DecodeCase> parse_decode_case(const std::string& text);

struct StepBenchOptions {
  std::vector<int64_t> prompts;  // lengths; each runs once to warm up and `prompt_runs` times
  std::vector<DecodeCase> decodes;
  int64_t prompt_runs = 3;
  int64_t steps = 64;  // counted steps of a decode case
  std::string command;
};

struct StepBenchRow {
  std::string kind;  // "prompt": submit to first token; "decode": one step
  int64_t rows = 1;
  int64_t tokens = 0;  // of the prompt, or the context
  int64_t count = 0;   // measurements
  double min_seconds = 0, median_seconds = 0, max_seconds = 0;
  double tokens_per_second = 0;  // prompt: length / median; decode: all rows' tokens / the time of all counted steps
  double host_seconds = 0;       // decode, mean of a step: time in which the host did not wait for the device
  int64_t kernels = 0;           // decode: kernels of a step, counted when it was recorded; 0 = not recorded in this case
};

struct StepBenchReport {
  Manifest manifest;
  std::vector<StepBenchRow> rows;
  int64_t weight_bytes = 0;  // of the model's tensors
  int64_t cache_bytes = 0, scratch_bytes = 0;
  int64_t cache_tokens = 0;       // tokens whose compressed rows fit
  int64_t free_device_bytes = 0;  // left beside weights, cache and scratch; 0 = unknown
  double cache_bytes_per_token = 0;
};

// The engine's options that the cases need.
EngineOptions step_bench_engine_options(EngineOptions options, const StepBenchOptions& bench);

// The engine must be idle. Errors: kResourceLimit when a case does not fit the engine.
Result<StepBenchReport> run_step_bench(Engine& engine, const StepBenchOptions& options, const std::function<void(const StepBenchRow&)>& on_row = {});

std::string to_text(const StepBenchRow& row);
std::string to_json(const StepBenchReport& report);

}  // namespace dsv4
