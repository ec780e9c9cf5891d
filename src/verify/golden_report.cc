// The verdicts over a golden run's lines, and their text and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "verify/golden.h"
#include "verify/numbers.h"

namespace dsv4 {
namespace {

GoldenGroup judge_group(std::vector<const GoldenLine*> lines, GoldenWeights weights) {
  GoldenGroup g;
  g.kind = lines[0]->kind;
  g.group = lines[0]->group;
  g.cases = static_cast<int64_t>(lines.size());
  std::vector<double> errors;
  int64_t failed = 0;
  for (const GoldenLine* line : lines) {
    errors.push_back(line->error);
    // A NaN is worse than any number.
    if (errors.size() == 1 || std::isnan(line->error) || line->error > g.worst) {
      if (std::isnan(g.worst)) continue;
      g.worst = line->error;
      g.worst_number = line->number;
    }
    g.differing += line->first_difference >= 0 ? 1 : 0;
    failed += line->passed ? 0 : 1;
  }
  g.median = median(errors);
  const bool exact = g.kind == GoldenKind::kExact;
  if (g.group == "greedy") {
    g.rule = exact ? "all sequences equal" : "all sequences equal but at most one";
    g.passed = failed <= (exact ? 0 : 1);
  } else if (exact) {
    g.rule = fmt::format("every case <= {:g}{}", kGoldenExactBound, g.group == "logits" ? ", every arg max equal" : "");
    g.passed = failed == 0;
  } else if (weights == GoldenWeights::kRandom) {
    g.rule = fmt::format("median <= {:g}{}", kGoldenWorst,
                         g.group == "logits" ? fmt::format(", cases of up to {} tokens <= {:g}", kGoldenFlipFreeTokens, kGoldenExactBound) : "");
    g.passed = failed == 0 && g.median <= kGoldenWorst;
  } else {
    g.rule = fmt::format("median <= {:g}, every case <= {:g}", kGoldenTrainedMedian, kGoldenWorst);
    g.passed = failed == 0 && g.median <= kGoldenTrainedMedian;
  }
  return g;
}

std::string token_text(int32_t token) { return token < 0 ? "the end" : std::to_string(token); }

}  // namespace

std::string GoldenLine::name() const { return fmt::format("{}/{}/{}", golden_kind_name(kind), group, number); }

std::vector<GoldenGroup> judge_golden(const std::vector<GoldenLine>& lines, GoldenWeights weights) {
  std::vector<GoldenGroup> groups;
  std::vector<const GoldenLine*> members;
  for (size_t i = 0; i < lines.size(); ++i) {
    members.push_back(&lines[i]);
    if (i + 1 < lines.size() && lines[i + 1].kind == lines[i].kind && lines[i + 1].group == lines[i].group) continue;
    groups.push_back(judge_group(std::move(members), weights));
    members.clear();
  }
  return groups;
}

std::string to_text(const GoldenLine& l) {
  std::string out = fmt::format("{:<22}", l.name());
  if (l.group == "greedy") {
    out += fmt::format(" equal {}/{}", l.equal, l.total);
    if (l.first_difference >= 0) {
      out +=
          fmt::format(", first difference at token {}: {} instead of {}, margin {:.3g}", l.first_difference, token_text(l.got), token_text(l.want), l.margin);
    }
  } else {
    out += fmt::format(" rel {:.2e}", l.error);
    if (l.total > 0) out += fmt::format("  argmax {}/{}", l.equal, l.total);
    if (l.first_difference >= 0) out += fmt::format(", first difference at position {}: {} instead of {}", l.first_difference, l.got, l.want);
  }
  return out + (l.passed ? "" : l.group == "greedy" ? "  DIFFERS" : "  PAST THE BOUND");
}

std::string to_text(const GoldenGroup& g) {
  if (g.group == "greedy") return fmt::format("{:<14} {} cases, {} differ: {} ({})", g.name(), g.cases, g.differing, g.passed ? "ok" : "FAILED", g.rule);
  return fmt::format("{:<14} {} cases, median {:.2e}, worst {:.2e} at {}: {} ({})", g.name(), g.cases, g.median, g.worst, g.worst_number,
                     g.passed ? "ok" : "FAILED", g.rule);
}

std::string to_json(const GoldenReport& report) {
  Json lines = Json::array(), groups = Json::array();
  for (const GoldenLine& l : report.lines) {
    Json row = {{"name", l.name()}, {"passed", l.passed}};
    if (l.group != "greedy") row["relative_error"] = l.error;  // a NaN becomes null
    if (l.total > 0) {
      row["equal"] = l.equal;
      row["total"] = l.total;
    }
    if (l.first_difference >= 0) {
      row["first_difference"] = l.first_difference;
      row["want"] = l.want;
      row["got"] = l.got;
      if (l.group == "greedy") row["margin"] = l.margin;
    }
    lines.push_back(std::move(row));
  }
  for (const GoldenGroup& g : report.groups) {
    groups.push_back({{"name", g.name()},
                      {"cases", g.cases},
                      {"median", g.median},
                      {"worst", g.worst},
                      {"worst_case", g.worst_number},
                      {"differing", g.differing},
                      {"rule", g.rule},
                      {"passed", g.passed}});
  }
  return Json{{"manifest", to_json_value(report.manifest)}, {"passed", report.passed}, {"groups", std::move(groups)}, {"cases", std::move(lines)}}.dump(1) +
         "\n";
}

}  // namespace dsv4
