// Whole steps of an engine at given batches and contexts: the wall time of each step, and in a second pass of the same steps the time of
// each operator beside the least bytes and operations it needs (its cost()). What the device can do at most comes from the caller,
// measured in the same run; shares of it are comparable between runs of one machine, times are not.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "verify/manifest.h"

namespace dsv4 {

struct StepShape {
  std::string kind;       // "decode", "prefill"
  int64_t sequences = 1;  // prefill: 1
  int64_t context = 0;    // decode: tokens of each sequence before the first measured step; prefill: 0
  int64_t rows = 1;       // tokens of a step: decode one a sequence, prefill the chunk

  std::string name() const;  // "decode 8 x 256", "prefill 512"
};

struct StepOp {
  std::string op;      // its name in the forward pass
  int64_t calls = 0;   // per step, as all that follows
  double seconds = 0;  // mean
  int64_t bytes = 0;
  int64_t flops = 0;
};

struct Peaks {
  double bytes_per_second = 0;
  double flops_per_second = 0;

  // The time that `cost` takes at least: reading and computing side by side.
  double floor_seconds(const OpCost& cost) const;
};

struct StepTiming {
  StepShape shape;
  int64_t steps = 0;
  double min = 0, median = 0, max = 0;  // seconds of a step
  std::vector<StepOp> ops;              // in the order of their first call
  std::vector<int32_t> tokens;          // decode: what the first sequence got, from its first token on
  Peaks peaks;                          // of the machine around these steps, filled in by the caller

  double tokens_per_second() const { return median > 0 ? static_cast<double>(shape.rows) / median : 0; }
  OpCost cost() const;
  int64_t bytes_of(std::string_view op) const;
};

// Decode steps of `sequences` sequences, each after a prompt of `context` seeded ids: sequence i has the same prompt in every run. Each run has an engine of
// its own, which is idle and has room for so many.
struct DecodeRun {
  Engine* engine = nullptr;
  int64_t sequences = 1, context = 1;
};
// `steps` steps of each run, in turns of a few: the machine's slow and fast times fall on all of them alike, so their ratios hold.
// Errors: those of the engines; kInvalidArgument for a shape that does not fit.
Result<std::vector<StepTiming>> time_decode(std::span<const DecodeRun> runs, int64_t steps);

// `repeats` prompts of `rows` seeded ids, each one chunk.
Result<StepTiming> time_prefill(Engine& engine, int64_t rows, int64_t repeats);

struct RooflineReport {
  Manifest manifest;
  double reference_error = -1;  // of logits against the reference backend, relative; -1 = not compared
  std::vector<StepTiming> timings;

  // decode of several sequences over decode of one, at one context: tokens per second once the bytes of the experts that only the larger
  // batch needs are taken off at the smaller one's rate. The experts' bytes are cost()'s: every chosen expert counts as a different one.
  struct BatchGain {
    int64_t sequences = 0, context = 0;
    double plain = 0, without_extra_experts = 0, roofline = 0;  // roofline: the plain gain of two memory-bound steps
  };
  std::vector<BatchGain> batch_gains() const;
};

std::string to_text(const RooflineReport& report);
std::string to_json(const RooflineReport& report);
Result<RooflineReport> parse_roofline(std::string_view json_text, const std::string& name);

// Shares of the peaks, shape by shape and operator by operator. A word at the end: "reject" when a shape fell below (1 - tolerance) of A's
// share, "promote" when none did and one rose above (1 + tolerance), else "undecided". Errors (kInvalidArgument): different identities or
// shapes, as compare_contracts.
Result<std::string> compare_rooflines(const RooflineReport& a, const RooflineReport& b, const std::vector<std::string>& vary, double tolerance = 0.1);

}  // namespace dsv4
