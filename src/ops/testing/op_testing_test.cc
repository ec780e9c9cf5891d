// The shared operator test itself: its judges refuse what judges elsewhere let pass, its list covers every operator, its controls apply.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "ops/testing/controls.h"
#include "ops/testing/executor.h"
#include "ops/testing/judge.h"
#include "ops/testing/op_cases.h"
#include "tensor/dtype.h"
#include "tensor/rounding.h"

namespace dsv4::optest {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Judges one row of floats against values and one bound.
bool accepts(const std::vector<float>& actual, const std::vector<double>& expected, double bound, double global = 1) {
  Problem p(1);
  p.num_rows = 1;
  const int t = p.add<float>("y", Role::kOutput, true, 1, static_cast<int64_t>(actual.size()), 0, actual);
  Truth truth{expected, std::vector<double>(expected.size(), bound), global};
  Verdict verdict;
  judge_floats(p, t, truth, p.images(), verdict);
  EXPECT_EQ(verdict.compared, static_cast<int64_t>(actual.size()));
  return verdict.ok();
}

TEST(Judge, accepts_within_the_bound_only) {
  EXPECT_TRUE(accepts({1.0f, -2.0f}, {1.0, -2.0}, 0));
  EXPECT_TRUE(accepts({1.25f}, {1.0}, 0.25));
  EXPECT_FALSE(accepts({1.25f}, {1.0}, 0.24));
  EXPECT_FALSE(accepts({-1.25f}, {-1.0}, 0.24)) << "two negative numbers";
  EXPECT_FALSE(accepts({-100.0f}, {-1.0}, 0.24)) << "below a negative number";
  EXPECT_FALSE(accepts({-1.0f}, {1.0}, 0.24));
}

TEST(Judge, nan_and_infinities_must_match) {
  EXPECT_FALSE(accepts({kNan}, {1.0}, 1e30));
  EXPECT_FALSE(accepts({1.0f}, {double{kNan}}, 1e30));
  EXPECT_TRUE(accepts({kNan}, {double{kNan}}, 0));
  EXPECT_FALSE(accepts({kInf}, {1.0}, double{kInf}));
  EXPECT_FALSE(accepts({-kInf}, {double{kInf}}, double{kInf}));
  EXPECT_FALSE(accepts({1e30f}, {double{kInf}}, double{kInf}));
  EXPECT_TRUE(accepts({kInf}, {double{kInf}}, 0));
  EXPECT_FALSE(accepts({1.0f}, {1.0}, double{kNan})) << "a bound that is NaN accepts nothing";
}

TEST(Judge, global_measure_refuses_a_small_error_everywhere) {
  const std::vector<float> actual(1000, 1.01f);
  const std::vector<double> expected(1000, 1.0);
  EXPECT_TRUE(accepts(actual, expected, 0.02, 0.02));
  EXPECT_FALSE(accepts(actual, expected, 0.02, 0.005));
}

bool accepts_rounded(double value, double error, float actual, RowRounding::Grid grid) {
  const int64_t n = grid == RowRounding::Grid::kE4M3 ? 64 : 32;
  // The other values pin the scale to 1: amax is 448 (6), just below the next power of two.
  RowTruth truth{std::vector<double>(static_cast<size_t>(n), grid == RowRounding::Grid::kE4M3 ? 400.0 : 5.5), std::vector<double>(static_cast<size_t>(n), 0.0)};
  std::vector<float> row(static_cast<size_t>(n), grid == RowRounding::Grid::kE4M3 ? 416.0f : 6.0f);
  if (grid == RowRounding::Grid::kE4M3) truth.value.assign(static_cast<size_t>(n), 416.0);
  truth.value[3] = value;
  truth.error[3] = error;
  row[3] = actual;
  Verdict verdict;
  judge_rounded_row("row", truth, {grid, n, n, false}, row.data(), verdict);
  return verdict.ok();
}

TEST(Judge, rounded_values_may_flip_only_at_a_boundary) {
  constexpr RowRounding::Grid kE4M3 = RowRounding::Grid::kE4M3, kE2M1 = RowRounding::Grid::kE2M1;
  EXPECT_TRUE(accepts_rounded(17.1, 1e-3, 18, kE4M3));  // codes 16, 18; boundary 17
  EXPECT_FALSE(accepts_rounded(17.1, 1e-3, 16, kE4M3));
  EXPECT_TRUE(accepts_rounded(17.0005, 1e-3, 16, kE4M3));
  EXPECT_TRUE(accepts_rounded(17.0005, 1e-3, 18, kE4M3));
  EXPECT_FALSE(accepts_rounded(17.0005, 1e-3, 20, kE4M3));
  EXPECT_FALSE(accepts_rounded(17.0005, 1e-3, 17.0005f, kE4M3)) << "not rounded";
  EXPECT_FALSE(accepts_rounded(17.1, 1e-3, kNan, kE4M3));
  EXPECT_TRUE(accepts_rounded(17.0, 0, 16, kE4M3)) << "a tie goes to the even code";
  EXPECT_FALSE(accepts_rounded(17.0, 0, 18, kE4M3));
  EXPECT_TRUE(accepts_rounded(2.5, 0, 2, kE2M1)) << "a tie goes toward zero";
  EXPECT_FALSE(accepts_rounded(2.5, 0, 3, kE2M1));
  EXPECT_FALSE(accepts_rounded(-2.6, 1e-3, 3, kE2M1)) << "the sign counts";
}

TEST(Judge, a_scale_may_differ_only_at_a_power_of_two) {
  for (const bool ambiguous : {false, true}) {
    RowTruth truth{std::vector<double>(64, 1.0), std::vector<double>(64, 0.0)};
    truth.value[0] = ambiguous ? 448.0001 : 449.0;  // 448 is the last amax of scale 1
    truth.error[0] = 0.001;
    truth.value[1] = 0.003;  // 1.536 steps of 2^-9 at scale 1, 0.768 of 2^-8 at scale 2
    std::vector<float> row(64, 1.0f);
    row[0] = 448;
    for (const auto& [small, scale] : {std::pair(0x1p-8f, 1), std::pair(0x1p-8f, 2)}) {
      row[1] = small;
      Verdict verdict;
      judge_rounded_row("row", truth, {RowRounding::Grid::kE4M3, 64, 64, false}, row.data(), verdict);
      EXPECT_TRUE(verdict.ok()) << scale;
    }
    truth.value[2] = row[2] = 0x1p-9f;  // exact at scale 1; a tie to zero at scale 2
    Verdict verdict;
    judge_rounded_row("row", truth, {RowRounding::Grid::kE4M3, 64, 64, false}, row.data(), verdict);
    EXPECT_EQ(verdict.ok(), ambiguous);
  }
}

TEST(Judge, roundings_by_definition_agree_with_the_tensor_room) {
  Rng rng(7);
  std::vector<float> x = rng.activations(1024, 1), got(x.size());
  round_e4m3(x.data(), 1024, 128, got.data());
  const std::vector<double> want = rounded_activations(std::vector<double>(x.begin(), x.end()));
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(double{got[i]}, want[i]) << i;
  for (double v = -7; v < 7; v += 0.03125) EXPECT_EQ(nearest_e2m1(v), double{e2m1_to_float(float_to_e2m1(static_cast<float>(v)))}) << v;
}

TEST(Judge, sum_error_covers_float_sums_in_any_order) {
  Rng rng(3);
  double worst = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t n = 1 + rng.below(3000);
    std::vector<float> a = rng.activations(n, 1), b = rng.activations(n, 1);
    if (trial % 3 == 0) {
      for (float& v : a) v = std::fabs(v);
      for (float& v : b) v = std::fabs(v);
    }
    float in_a_row = 0;
    for (int64_t i = 0; i < n; ++i) in_a_row += a[static_cast<size_t>(i)] * b[static_cast<size_t>(i)];
    const Sum s = dot(a.data(), b.data(), n);
    worst = std::max(worst, std::fabs(in_a_row - s.value) / s.error());
  }
  EXPECT_LT(worst, 1.0);
  EXPECT_GT(worst, 0.2) << "the bound would be far too wide";
}

TEST(Cases, cover_every_operator_with_unique_names) {
  const std::set<std::string> ops = {"embed",          "rope_table",      "hc_pre",      "hc_post",         "hc_head",       "rms_norm",     "linear",
                                     "grouped_linear", "query_norm_rope", "kv_insert",   "compressor_step", "indexer_query", "indexer_topk", "sparse_attention",
                                     "moe_route",      "swiglu",          "moe_experts", "argmax",          "sample"};
  // An OpTable is its slots and nothing else: a slot more breaks this until the list and the cases have it.
  ASSERT_EQ(ops.size() * sizeof(void*), sizeof(OpTable));
  std::map<std::string, std::set<std::string>> seen;
  for (const OpCase& c : all_op_cases()) {
    EXPECT_TRUE(ops.count(c.op)) << c.op;
    EXPECT_TRUE(has_op(reference_ops(), c.op)) << c.op;
    EXPECT_TRUE(seen[c.op].insert(c.name).second) << c.full_name() << " twice";
  }
  for (const std::string& op : ops) {
    EXPECT_GE(seen[op].size(), 6u) << op;
    EXPECT_FALSE(has_op(OpTable{}, op)) << op;
  }
}

// For each operator, every kind of damage applies to some case (else the control never spoke).
TEST(Controls, every_damage_applies_to_every_operator) {
  const std::unique_ptr<Device> device = make_reference_device(1);
  std::map<std::string, std::set<Damage>> applied;
  for (const OpCase& c : all_op_cases()) {
    if (applied[c.op].size() == std::size(kAllDamages) || c.name.find("v4_flash") != std::string::npos) continue;
    const std::unique_ptr<Problem> problem = c.build(1);
    if (problem->num_rows == 0) continue;
    Images images = problem->images();
    std::vector<std::string> violations;
    ASSERT_TRUE(Executor(*problem, *device).run(problem->all_rows(), kPoisonWord, images, violations).ok());
    for (const ControlResult& r : run_controls(*problem, problem->images(), images, 1)) {
      if (r.applicable && r.refused) applied[c.op].insert(r.damage);
    }
  }
  for (const auto& [op, damages] : applied) EXPECT_EQ(damages.size(), std::size(kAllDamages)) << op;
}

TEST(Cases, same_seed_same_inputs_other_seed_other_inputs) {
  for (const OpCase& c : all_op_cases()) {
    if (c.name != "one_row_tiny_model" && c.name != "sequences_and_padding") continue;
    EXPECT_EQ(c.build(5)->images(), c.build(5)->images()) << c.full_name();
    EXPECT_NE(c.build(5)->images(), c.build(6)->images()) << c.full_name();
  }
}

TEST(Report, table_names_the_failure_and_counts) {
  CaseReport good, bad;
  good.op = "rms_norm";
  bad.op = "linear";
  bad.outcome = CaseOutcome::kFailed;
  bad.reasons = {"y0[0][0] is 1, expected 2"};
  const std::string table = report_table({good, bad});
  EXPECT_NE(table.find("y0[0][0] is 1, expected 2"), std::string::npos);
  EXPECT_NE(table.find("1 passed, 1 failed, 0 unsupported"), std::string::npos);
}

}  // namespace
}  // namespace dsv4::optest
