// The regression suite: one line a check, each with its own reason to exist. What it looks for are faults of state and company: a block,
// window or compression boundary, a prefix state, a second request, an order of arrival.
//
// The answer to "are these tokens right?" is the engine itself in its simplest use: one prefill of prompt and answer gives the arg max
// at every position, and no decode step, batch or cache state takes part in it. verify golden and verify accuracy hold that prefill
// against the outside.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/manifest.h"
#include "verify/runs.h"

namespace dsv4 {

struct SuiteOptions {
  bool quick = false;  // fewer repetitions and shorter answers: under a minute on the shipped model
  int64_t soak = 1;    // the repetition and batch checks run this many times, with another order each
  uint64_t seed = 1;
  std::vector<std::string> only;  // names of checks; empty = all
};

struct SuiteLine {
  std::string name;
  bool passed = false;
  double seconds = 0;
  std::string detail;  // what was compared; the first difference when it failed
};

struct SuiteReport {
  Manifest manifest;  // of the plain engine
  std::vector<SuiteLine> lines;
  bool passed = false;
};

// The names in their order, with what each checks.
std::vector<std::pair<std::string, std::string>> suite_checks();

// Checks share engines where they can; those that need another configuration make their own. Errors: an unknown name in `only`, or a
// model that cannot be opened; trouble within a check is a failed line.
Result<SuiteReport> run_suite(const EngineFactory& make_engine, const SuiteOptions& options, const std::function<void(const SuiteLine&)>& on_line = {});

std::string to_text(const SuiteLine& line);
std::string to_json(const SuiteReport& report);

}  // namespace dsv4
