// One experiment: one change, A without it and B with it, interleaved in one process, correctness first; the outcome goes to a ledger,
// also when it is negative.
//
// Experiment file (TOML):
//   name = "graph-decode"                 # letters, digits and dashes; once in the ledger is once done
//   change = "decode steps as one captured graph"
//   hypothesis = "fewer launches: 5 % faster"
//   model = "models/dsv4-tiny"            # optional: the command line's
//   rounds = 6                            # of all 12 contract prompts each; default 2
//   new_tokens = 128                      # default 128
//   min_agreement = 1.0                   # gate: share of 96 positions with the same best token; default 1
//   max_kl = 1e-3                         # gate: mean KL of B from A; default 1e-3
//   min_gain = 0.005                      # what "promote" needs; default 0.005
//   [a]
//   graph = "eager"
//   [b]
//   graph = "full"
// [a] and [b] hold engine settings (arithmetic, cache, graph, chunk, context, backend, threads, isa); exactly one of them may differ.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/statistics.h"
#include "verify/logprobs.h"
#include "verify/manifest.h"

namespace dsv4 {

using LabSettings = std::map<std::string, std::string>;  // every value as text

struct Experiment {
  std::string name, change, hypothesis, model;
  int64_t rounds = 2, new_tokens = 128;
  double min_agreement = 1, max_kl = 1e-3, min_gain = 0.005;
  LabSettings a, b;
  std::string varied;  // the one setting that differs
};

// Errors name the file, the key and the rule.
Result<Experiment> parse_experiment(std::string_view toml_text, const std::string& name);

struct LabOutcome {
  Experiment experiment;
  Manifest a, b;
  std::string gate;  // "" = all gates passed, else the one that failed
  LogprobComparison logprobs;
  std::vector<double> speeds_a, speeds_b;  // tok/s, pair by pair
  RatioInterval ratio;
  std::string verdict;  // "promote", "reject", "undecided", "gate failed"
};

using LabFactory = std::function<Result<std::unique_ptr<Engine>>(const LabSettings& settings)>;

// Two engines live side by side; each prompt runs on A then B, the next on B then A. `on_pair` sees the speeds of each.
Result<LabOutcome> run_lab(const Experiment& experiment, const LabFactory& make_engine, const std::function<void(double a, double b)>& on_pair = {});

std::string to_text(const LabOutcome& outcome);

// The ledger: one JSON object a line, only ever appended to.
std::string ledger_line(const LabOutcome& outcome);
Status append_to_ledger(const std::string& path, const LabOutcome& outcome);
// The ledger as a Markdown page. Errors: a line that is no entry.
Result<std::string> render_ledger(std::string_view jsonl, const std::string& name);

}  // namespace dsv4
