#include "ops/testing/op_cases.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "ops/testing/case_lists.h"
#include "ops/testing/controls.h"
#include "ops/testing/executor.h"

namespace dsv4 {
namespace {

using optest::Executor;
using optest::Images;
using optest::Problem;
using optest::RowRange;
using optest::Unit;
using optest::Verdict;

// What outputs hold before the first run and before the repeats: NaN, so that a missing write shows, then zero.
constexpr uint32_t kFirstFill = optest::kPoisonWord;
constexpr uint32_t kRepeatFill = 0;

// Empty, or where the results of two runs differ. `range` limits per-row tensors; state is compared whole.
std::string difference(const Problem& p, RowRange range, const Images& a, const Images& b) {
  for (const Unit& u : p.units(range)) {
    if (!u.judged) continue;
    const size_t t = static_cast<size_t>(u.tensor);
    for (const optest::Span& s : u.spans) {
      for (int64_t i = s.begin; i < s.end; ++i) {
        if (a[t][static_cast<size_t>(i)] == b[t][static_cast<size_t>(i)]) continue;
        std::string where = p.tensors[t].name + " byte " + std::to_string(i);
        if (p.tensors[t].per_row) {
          where += " (row " + std::to_string(i / p.tensors[t].row_bytes()) + ", column " +
                   std::to_string(i % p.tensors[t].row_bytes() / optest::elem_bytes(p.tensors[t].elem)) + ")";
        }
        return where;
      }
    }
  }
  return "";
}

// Parts of 1, 2, 3, 7, 1, 64, ... rows: boundaries fall at every phase of a window.
std::vector<RowRange> uneven_parts(int64_t rows) {
  constexpr int64_t kSizes[] = {1, 2, 3, 7, 1, 64, 5, 13};
  std::vector<RowRange> parts;
  for (int64_t begin = 0, i = 0; begin < rows; ++i) {
    const int64_t end = std::min(rows, begin + kSizes[i % 8]);
    parts.push_back({begin, end});
    begin = end;
  }
  return parts;
}

std::vector<RowRange> single_rows(int64_t rows) {
  std::vector<RowRange> parts;
  for (int64_t r = 0; r < rows; ++r) parts.push_back({r, r + 1});
  return parts;
}

class CaseRunner {
 public:
  CaseRunner(const Problem& problem, Device& tested, Device& reference, const RunOptions& options, CaseReport& report)
      : problem_(problem), reference_(reference), options_(options), report_(report), executor_(problem, tested) {}

  void run() {
    Images expected = problem_.images();
    Executor reference(problem_, reference_);
    if (!ran("reference", reference.run(problem_.all_rows(), kFirstFill, expected, violations_))) return;
    Verdict of_reference;
    problem_.judge(expected, nullptr, of_reference);
    for (const std::string& r : of_reference.reasons) fail("the reference itself: " + r);

    Images actual = problem_.images();
    if (!ran("first run", executor_.run(problem_.all_rows(), kFirstFill, actual, violations_))) return;
    Verdict verdict;
    problem_.judge(actual, &expected, verdict);
    for (const std::string& r : verdict.reasons) fail(r);
    if (verdict.refusals > static_cast<int64_t>(verdict.reasons.size())) fail(std::to_string(verdict.refusals) + " elements refused in all");
    report_.compared = verdict.compared;
    report_.worst_ratio = verdict.worst_ratio;
    report_.relative_l2 = verdict.relative_l2;
    report_.flips = verdict.flips;

    const bool has_results = problem_.num_rows > 0;
    if (has_results && verdict.compared == 0) fail("nothing was compared");
    if (!has_results && verdict.compared != 0) fail("elements were compared though there are no rows");
    if (options_.same_bits_as_reference) same("the same bits as the reference", problem_.all_rows(), expected, actual);
    if (options_.promises) check_promises(actual);
    if (options_.controls && has_results && verdict.ok()) check_controls(actual);
    for (const std::string& v : violations_) fail(v);
  }

 private:
  void fail(std::string reason) {
    report_.outcome = CaseOutcome::kFailed;
    if (report_.reasons.size() < 8) report_.reasons.push_back(std::move(reason));
  }

  bool ran(const std::string& what, const Status& status) {
    if (status.ok()) return true;
    if (status.code() == StatusCode::kUnsupported && report_.outcome == CaseOutcome::kPassed) {
      report_.outcome = CaseOutcome::kUnsupported;
      report_.reasons.push_back(status.message());
    } else {
      fail(what + ": " + status.message());
    }
    return false;
  }

  void same(const std::string& promise, RowRange range, const Images& batch, const Images& other) {
    const std::string where = difference(problem_, range, batch, other);
    if (!where.empty()) fail(promise + ": differs at " + where);
  }

  void check_promises(const Images& batch) {
    Images again = problem_.images();
    if (!ran("repeated run", executor_.run(problem_.all_rows(), kRepeatFill, again, violations_))) return;
    same("a repeated run gives the same bits", problem_.all_rows(), batch, again);
    const int64_t rows = problem_.num_rows;
    if (rows < 2) return;

    if (problem_.ordered) {
      for (const auto& parts : {uneven_parts(rows), single_rows(std::min<int64_t>(rows, 48))}) {
        Images images = problem_.images();
        std::vector<RowRange> all = parts;
        if (all.back().end < rows) all.push_back({all.back().end, rows});
        if (!ran("run in parts", executor_.run_parts(all, kRepeatFill, images, violations_))) return;
        same("a batch fed in parts leaves the same bits", problem_.all_rows(), batch, images);
      }
      return;
    }
    for (const int64_t r : {int64_t{0}, rows / 2, rows - 1}) {
      Images images = problem_.images();
      if (!ran("row alone", executor_.run({r, r + 1}, kRepeatFill, images, violations_))) return;
      same("row " + std::to_string(r) + " alone equals the row in the batch", {r, r + 1}, batch, images);
    }
    const int64_t cut = std::max<int64_t>(1, rows / 3);
    Images images = problem_.images();
    if (!ran("run in parts", executor_.run_parts({{0, cut}, {cut, rows}}, kRepeatFill, images, violations_))) return;
    same("a batch cut in two gives the same bits", problem_.all_rows(), batch, images);
  }

  void check_controls(const Images& good) {
    Images before = problem_.images();
    for (const optest::ControlResult& c : run_controls(problem_, before, good, report_.seed)) {
      if (!c.applicable) {
        ++report_.controls_not_applicable;
      } else if (c.refused) {
        ++report_.controls_refused;
      } else {
        fail(std::string("the judge accepts a damaged result: ") + optest::damage_name(c.damage) + " of " + c.tensor);
      }
    }
    if (report_.controls_refused == 0) fail("no negative control was applicable");
  }

  const Problem& problem_;
  Device& reference_;
  const RunOptions& options_;
  CaseReport& report_;
  Executor executor_;
  std::vector<std::string> violations_;
};

}  // namespace

bool has_op(const OpTable& t, const std::string& op) {
#define DSV4_SLOT(name) \
  if (op == #name) return t.name != nullptr
  DSV4_SLOT(embed);
  DSV4_SLOT(rope_table);
  DSV4_SLOT(hc_pre);
  DSV4_SLOT(hc_post);
  DSV4_SLOT(hc_head);
  DSV4_SLOT(rms_norm);
  DSV4_SLOT(linear);
  DSV4_SLOT(grouped_linear);
  DSV4_SLOT(query_norm_rope);
  DSV4_SLOT(kv_insert);
  DSV4_SLOT(compressor_step);
  DSV4_SLOT(indexer_query);
  DSV4_SLOT(indexer_topk);
  DSV4_SLOT(sparse_attention);
  DSV4_SLOT(moe_route);
  DSV4_SLOT(swiglu);
  DSV4_SLOT(moe_experts);
  DSV4_SLOT(argmax);
  DSV4_SLOT(sample);
#undef DSV4_SLOT
  return false;
}

std::vector<OpCase> all_op_cases() {
  std::vector<OpCase> cases;
  optest::add_table_cases(cases);
  optest::add_sample_cases(cases);
  optest::add_hc_cases(cases);
  optest::add_row_cases(cases);
  optest::add_linear_cases(cases);
  optest::add_kv_insert_cases(cases);
  optest::add_compressor_cases(cases);
  optest::add_indexer_cases(cases);
  optest::add_attention_cases(cases);
  optest::add_moe_route_cases(cases);
  optest::add_moe_experts_cases(cases);
  return cases;
}

CaseReport run_op_case(const OpCase& op_case, Device& tested, Device& reference, const RunOptions& options) {
  CaseReport report;
  report.op = op_case.op;
  report.name = op_case.name;
  report.seed = options.seed;
  const auto start = std::chrono::steady_clock::now();
  if (!has_op(tested.ops(), op_case.op)) {
    report.outcome = CaseOutcome::kFailed;
    report.reasons.push_back(tested.info().backend + " has no operator " + op_case.op);
    return report;
  }
  const std::unique_ptr<Problem> problem = op_case.build(optest::hash_name(op_case.full_name()) ^ (options.seed * 0x9e3779b97f4a7c15u));
  CaseRunner(*problem, tested, reference, options, report).run();
  if (report.outcome == CaseOutcome::kUnsupported && !op_case.may_be_unsupported) {
    report.outcome = CaseOutcome::kFailed;
    report.reasons.insert(report.reasons.begin(), "unsupported, but a model needs this shape");
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string report_table(const std::vector<CaseReport>& reports) {
  std::string out;
  int passed = 0, failed = 0, unsupported = 0;
  char line[256];
  for (const CaseReport& r : reports) {
    const char* outcome = r.outcome == CaseOutcome::kPassed ? "ok" : r.outcome == CaseOutcome::kFailed ? "FAILED" : "unsupported";
    passed += r.outcome == CaseOutcome::kPassed;
    failed += r.outcome == CaseOutcome::kFailed;
    unsupported += r.outcome == CaseOutcome::kUnsupported;
    std::snprintf(line, sizeof(line), "%-16s %-36s %-11s %9lld compared  worst %.3f of bound  rel L2 %.1e  flips %lld  controls %d  %.2f s\n", r.op.c_str(),
                  r.name.c_str(), outcome, static_cast<long long>(r.compared), r.worst_ratio, r.relative_l2, static_cast<long long>(r.flips),
                  r.controls_refused, r.seconds);
    out += line;
    for (const std::string& reason : r.reasons) out += "    " + reason + "\n";
  }
  std::snprintf(line, sizeof(line), "%d passed, %d failed, %d unsupported\n", passed, failed, unsupported);
  return out + line;
}

}  // namespace dsv4
