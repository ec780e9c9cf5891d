#include "verify/accuracy.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "faulty_device.h"
#include "test_engine.h"
#include "verify/logprobs.h"
#include "verify/prompts.h"
#include "verify/suite.h"
#include "verify/svg_plot.h"

namespace dsv4 {
namespace {

EngineOptions options_of(Arithmetic arithmetic, RowFormat format) {
  EngineOptions o;
  o.arithmetic = arithmetic;
  o.cache_format = format;
  o.max_context_tokens = 512;
  o.max_seqs = 1;
  o.max_logits_rows = 257;
  o.prefix_states = 0;
  return o;
}

const EngineOptions kServed = options_of(Arithmetic::kQat, RowFormat::kFp8DsMla);

AccuracyReport measure(const EngineOptions& reference, const AccuracyBounds& bounds) {
  AccuracyOptions options;
  options.tokens = eval_tokens(100);
  options.prompts = {encode_prompt(*test_engine(kTinyModel, kServed), {"What is 512 + 561?", {}}).value()};
  options.num_positions = 24;
  const auto report =
      measure_accuracy([] { return test_factory(kTinyModel)(kServed); }, [&] { return test_factory(kTinyModel, "reference")(reference); }, options, bounds);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return *report;
}

// Whole runs of the commands, against exact as well, are commands_test.sh's.
TEST(Accuracy, against_qat) {
  const AccuracyReport report = measure(options_of(Arithmetic::kQat, RowFormat::kF32), bounds_against_qat());
  EXPECT_TRUE(report.passed) << to_text(report);
  EXPECT_EQ(report.layers.size(), 8u);
  EXPECT_EQ(report.against, "qat");
  EXPECT_GT(report.layers[3].cache_error, 1e-3) << "E4M3 rounds: a round trip without an error compares the cache with itself";
  EXPECT_LT(report.perplexity, 30);
  const std::string json = to_json(report), svg = to_svg(report);
  EXPECT_NE(json.find("\"one_token_error\""), std::string::npos);
  EXPECT_EQ(svg.find("<svg "), 0u);
  EXPECT_NE(svg.find("experts output"), std::string::npos);
}

TEST(Accuracy, exact_against_exact_is_tight) {
  AccuracyOptions options;
  options.tokens = eval_tokens(40);
  AccuracyBounds bounds = bounds_against_qat();
  bounds.layer_error = 2e-5;
  bounds.kl = 1e-8;
  const EngineOptions exact = options_of(Arithmetic::kExact, RowFormat::kF32);
  const auto report =
      measure_accuracy([&] { return test_factory(kTinyModel)(exact); }, [&] { return test_factory(kTinyModel, "reference")(exact); }, options, bounds).value();
  EXPECT_TRUE(report.passed) << to_text(report);
}

TEST(Accuracy, another_model_fails) {
  AccuracyOptions options;
  options.tokens = random_tokens(24, 24, 3);
  const std::string a = write_model(small_config(3), "accuracy_a"), b = write_model(small_config(2), "accuracy_b");
  const auto report =
      measure_accuracy([&] { return test_factory(a)(kServed); }, [&] { return test_factory(b)(kServed); }, options, bounds_against_qat()).value();
  EXPECT_FALSE(report.passed);
  options.tokens.resize(3);
  EXPECT_FALSE(measure_accuracy([&] { return test_factory(a)(kServed); }, {}, options, {}).ok()) << "too short a text";
}

TEST(Logprobs, two_backends_agree_and_a_record_survives) {
  const auto engine = test_engine(kTinyModel, kServed);
  const LogprobRecord a = record_logprobs(*engine, eval_tokens(97), "cpu").value();
  EXPECT_EQ(a.rows.size(), 96u);
  EXPECT_EQ(a.rows[0].top.size(), 20u);
  const auto back = parse_logprobs(to_json(a), "a.json");
  ASSERT_TRUE(back.ok()) << back.status().message();
  const LogprobComparison same = compare_logprobs(a, *back, {}).value();
  EXPECT_EQ(same.agree, 96);
  EXPECT_LT(same.mean_kl, 1e-6);
  EXPECT_TRUE(same.passed);
  const auto reference = test_engine(kTinyModel, kServed, "reference");
  const LogprobComparison c = compare_logprobs(a, record_logprobs(*reference, eval_tokens(97), "reference").value(), {}).value();
  EXPECT_TRUE(c.passed) << c.agree << " " << c.mean_kl;
}

TEST(Logprobs, differences_are_seen) {
  LogprobRecord a;
  a.tokens = {0, 5, 6};
  a.rows = {{{{5, -0.1f}, {7, -3.0f}}}, {{{6, -0.1f}, {7, -3.0f}}}};
  LogprobRecord b = a;
  b.rows[1].top = {{7, -0.1f}, {6, -3.0f}};
  const LogprobComparison c = compare_logprobs(a, b, {}).value();
  EXPECT_EQ(c.agree, 1);
  EXPECT_EQ(c.worst_position, 2);
  EXPECT_EQ(c.worst_a, 6);
  EXPECT_EQ(c.worst_b, 7);
  EXPECT_GT(c.mean_kl, 1);
  EXPECT_FALSE(c.passed);
  b.tokens[1] = 4;
  EXPECT_FALSE(compare_logprobs(a, b, {}).ok()) << "another text";
  for (const char* bad : {"[]", "{}", R"({"kind": "dsv4-logprobs"})",
                          R"({"kind":"dsv4-logprobs","model":"","identity":"","configuration":"","device":"","tokens":[1],"rows":[[],[]]})"}) {
    EXPECT_FALSE(parse_logprobs(bad, "bad").ok()) << bad;
  }
}

TEST(Accuracy, a_run_that_stops_is_judged_by_what_was_seen) {
  AccuracyOptions options;
  options.tokens = eval_tokens(40);
  const auto broken = [] {
    return Engine::create(Checkpoint::open(kTinyModel, {}).value(), make_faulty_device(test_device(), {.fault = Fault::kReader584Bytes}), kServed);
  };
  const AccuracyReport report = measure_accuracy(broken, {}, options, bounds_against_qat()).value();
  EXPECT_FALSE(report.passed);
  ASSERT_EQ(report.checks.size(), 3u);
  EXPECT_TRUE(report.checks[0].passed) << "the cache holds what was written: " << to_text(report);
  EXPECT_FALSE(report.checks[1].passed);
  EXPECT_NE(report.checks[1].detail.find("first past the bound: layer 0"), std::string::npos) << report.checks[1].detail;
  EXPECT_EQ(report.checks[2].name, "run");
  EXPECT_NE(report.checks[2].detail.find("hold a NaN"), std::string::npos);
}

TEST(Suite, names) {
  EXPECT_EQ(run_suite(test_factory(kTinyModel), {.only = {"32 tokens"}})->lines.size(), 1u);
  const auto unknown = run_suite(test_factory(kTinyModel), {.only = {"33 tokens"}});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().message().find("suite: there is no check \"33 tokens\"; there are \"32 tokens\", "), 0u);
}

TEST(SvgPlot, draws_what_it_is_given) {
  LinePlot plot;
  plot.title = "a < b & c";
  plot.x_names = {"0", "1", "2"};
  plot.series = {{"s", {1e-3, 0, 1e-1}}};
  plot.log_y = true;
  plot.bound = 1e-2;
  plot.bound_name = "bound";
  const std::string svg = to_svg({plot});
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find("stroke-dasharray"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  // The zero has no place on a log scale: two dots.
  EXPECT_EQ(svg.find("<circle", svg.find("<circle", svg.find("<circle") + 1) + 1), std::string::npos);
  EXPECT_EQ(to_svg({LinePlot{}}).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
