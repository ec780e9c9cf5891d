// Judges an engine against a golden file (golden_file.h): each case by its bound, each group by its rule.
//
//   exact          logits and hidden states within 2e-5 of the golden, arg max equal at every position, greedy sequences equal
//   qat, served    a rounding that falls the other way moves a case, so
//     trained      median <= 1e-4 and every case <= 5e-2 (decode steps likewise); greedy sequences equal but at most one
//     random       cases of up to 3 tokens within 2e-5, and median <= 5e-2: a single flip costs such a model 1e-2
//
// Errors are relative L2 errors. The bounds of "exact" are about five times what two float32 implementations differ by.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/golden_file.h"
#include "verify/manifest.h"
#include "verify/runs.h"

namespace dsv4 {

inline constexpr double kGoldenExactBound = 2e-5;
inline constexpr double kGoldenTrainedMedian = 1e-4;
inline constexpr double kGoldenWorst = 5e-2;         // trained: of any case; random: of the median
inline constexpr double kGoldenExplainAbove = 1e-3;  // a case beyond asks for a trace
inline constexpr int64_t kGoldenFlipFreeTokens = 3;

enum class GoldenWeights : uint8_t { kTrained, kRandom };

struct GoldenLine {
  GoldenKind kind = GoldenKind::kExact;
  std::string group;              // "logits", "hidden", "decode", "greedy"
  int64_t number = 0;             // N, layer, fed token index, prompt
  double error = 0;               // relative L2; greedy: 0
  int64_t equal = 0, total = 0;   // arg maxes (greedy: tokens) that agree, of how many; 0 of 0 = not compared
  int64_t first_difference = -1;  // arg max: position; greedy: token; -1 = none
  int32_t want = -1, got = -1;    // the token there; -1 = the sequence had ended
  double margin = 0;              // greedy: our logit of `got` minus that of `want`
  bool passed = true;             // by the case's own bound (a greedy difference may yet be allowed by its group)

  std::string name() const;  // "exact/logits/129"
};

struct GoldenGroup {
  GoldenKind kind = GoldenKind::kExact;
  std::string group;
  int64_t cases = 0;
  double median = 0, worst = 0;
  int64_t worst_number = 0;
  int64_t differing = 0;  // arg maxes or greedy sequences
  bool passed = true;
  std::string rule;  // "every case <= 2e-05, every arg max equal"

  std::string name() const { return std::string(golden_kind_name(kind)) + "/" + group; }
};

struct GoldenReport {
  Manifest manifest;  // of the last engine; options differ between kinds
  std::vector<GoldenLine> lines;
  std::vector<GoldenGroup> groups;
  bool passed = false;
};

struct GoldenOptions {
  std::vector<GoldenKind> kinds;  // empty = all that the file has
  GoldenWeights weights = GoldenWeights::kTrained;
  int64_t max_tokens = 0;  // leave out longer cases; 0 = none
  int64_t prefill_chunk = 256;
  bool greedy = true;  // also decode and hidden
};

// Runs and judges. `on_line` sees each line as it is known. Errors: trouble with the file or the engine, or a model whose vocabulary
// is not the golden's; a case past its bound is no error.
Result<GoldenReport> verify_golden(const GoldenFile& golden, const EngineFactory& make_engine, const GoldenOptions& options,
                                   const std::function<void(const GoldenLine&)>& on_line = {});

// The engine a kind needs.
EngineOptions golden_engine_options(GoldenKind kind, int64_t prefill_chunk);

// One line each, without the newline.
std::string to_text(const GoldenLine& line);
std::string to_text(const GoldenGroup& group);
std::string to_json(const GoldenReport& report);

// The groups' verdicts over `lines`. Pure.
std::vector<GoldenGroup> judge_golden(const std::vector<GoldenLine>& lines, GoldenWeights weights);

}  // namespace dsv4
