// Planted fault -> the check that catches it -> what it says. Some rows also name a softer check that lets the fault through: that is why
// the harder check exists.
#include <gtest/gtest.h>

#include "faulty_device.h"
#include "test_engine.h"
#include "verify/accuracy.h"
#include "verify/canary.h"
#include "verify/logprobs.h"
#include "verify/probe.h"
#include "verify/prompts.h"
#include "verify/suite.h"
#include "verify/validate.h"

namespace dsv4 {
namespace {

EngineFactory faulty_factory(const FaultPlan& plan) {
  return [plan](const EngineOptions& options) -> Result<std::unique_ptr<Engine>> {
    DSV4_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(kTinyModel, {}));
    return Engine::create(std::move(checkpoint), make_faulty_device(test_device(), plan), options);
  };
}

EngineOptions options_of() {
  EngineOptions o;
  o.max_context_tokens = 512;
  o.max_seqs = 1;
  o.max_logits_rows = 257;
  o.prefix_states = 0;
  return o;
}

// ---- the checks: "" when the engine passes, else the name of what failed first, and its words ----

std::string by_validate(const FaultPlan& plan) {
  auto engine = faulty_factory(plan)(options_of()).value();
  Validator validator(*engine, {});
  (void)generate(*engine, greedy_request(encode_prompt(*engine, {"Tell me a story about an otter and a lantern.", {}}).value(), 40));
  return validator.first_failure() ? validator.first_failure()->message() : "";
}

std::string by_accuracy(const FaultPlan& plan) {
  AccuracyOptions options;
  options.tokens = eval_tokens(150);
  const auto report = measure_accuracy([&] { return faulty_factory(plan)(options_of()); }, {}, options, bounds_against_qat());
  if (!report.ok()) return report.status().message();
  for (const AccuracyCheck& check : report->checks) {
    if (!check.passed) return check.name + ": " + check.detail;
  }
  return "";
}

std::string by_logprobs(const FaultPlan& plan) {
  const LogprobRecord sound = record_logprobs(*test_engine(kTinyModel, options_of()), eval_tokens(97), "sound").value();
  const LogprobRecord faulty = record_logprobs(*faulty_factory(plan)(options_of()).value(), eval_tokens(97), "faulty").value();
  const LogprobComparison c = compare_logprobs(sound, faulty, {}).value();
  return c.passed ? "" : "logprobs: " + std::to_string(c.agree) + " of 96";
}

std::string by_suite(const FaultPlan& plan) {
  const SuiteReport report = run_suite(faulty_factory(plan), {.quick = true, .only = {"32 tokens"}}).value();
  return report.passed ? "" : report.lines[0].name + ": " + report.lines[0].detail;
}

std::string by_probe(const FaultPlan& plan) {
  const ProbeOutput out = probe_engine(*faulty_factory(plan)(options_of()).value(), {}).value();
  return out.coherent() ? "" : std::string(verdict_name(out.verdict.verdict)) + ": " + out.verdict.reason;
}

std::string by_canary(const FaultPlan& plan) {
  const CanaryReport report = run_canaries(*faulty_factory(plan)(options_of()).value(), load_model_canaries(kTinyModel).value()).value();
  for (const CanaryLine& line : report.lines) {
    if (!line.passed) return "canary " + line.canary + ": " + line.fault;
  }
  return "";
}

using Check = std::string (*)(const FaultPlan&);

struct Row {
  const char* name;
  FaultPlan plan;
  Check check;
  const char* says;  // its words begin so
  Check blind;       // a softer check that sees nothing; null = none
};

const Row kTable[] = {
    {"wrong cache stride", {.fault = Fault::kReaderStride}, by_accuracy, "one-token attention: worst at layer ", by_probe},
    {"584-byte tokens, read", {.fault = Fault::kReader584Bytes}, by_accuracy, "one-token attention: worst at layer ", nullptr},
    {"584-byte tokens, written", {.fault = Fault::kWriter584Bytes}, by_accuracy, "cache round trip: worst at layer ", nullptr},
    {"NaN in one cache row",
     {.fault = Fault::kNanInCacheRow, .layer = 2, .position = 17},
     by_validate,
     "validate: request 1, position 17, layer 2, kv_insert, rank 0: decoded K: window row 17: channel 3 is nan",
     nullptr},
    {"swapped scales", {.fault = Fault::kSwappedScales}, by_accuracy, "cache round trip: worst at layer ", by_validate},
    {"stale length", {.fault = Fault::kStaleLength}, by_accuracy, "one-token attention: worst at layer ", by_logprobs},
    {"skipped sink", {.fault = Fault::kSkippedSink}, by_accuracy, "one-token attention: worst at layer ", by_logprobs},
    {"wrong rotary base", {.fault = Fault::kWrongRotaryBase}, by_accuracy, "cache round trip: worst at layer ", by_suite},
    {"expert weights unnormalised",
     {.fault = Fault::kUnnormalisedExperts},
     by_validate,
     "validate: request 1, position 0, layer 0, moe_route, rank 0: routing: the weights of the chosen experts add up to ",
     by_suite},
    {"transposed wo_a scales", {.fault = Fault::kTransposedWoAScales}, by_logprobs, "logprobs: 90 of 96", by_canary},
};

class FaultTable : public testing::TestWithParam<size_t> {};

TEST_P(FaultTable, caught_by_its_check) {
  const Row& row = kTable[GetParam()];
  const std::string words = row.check(row.plan);
  EXPECT_EQ(words.find(row.says), 0u) << row.name << ": \"" << words << "\"";
  if (row.blind != nullptr) EXPECT_EQ(row.blind(row.plan), "") << row.name << ": the softer check sees it after all";
}

INSTANTIATE_TEST_SUITE_P(All, FaultTable, testing::Range<size_t>(0, std::size(kTable)), [](const auto& info) {
  std::string name = kTable[info.param].name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

// The twin of the transposed scales: what it changes comes out even, bit by bit.
TEST(FaultTableControl, varied_scales_are_no_fault) {
  const LogprobRecord plain = record_logprobs(*test_engine(kTinyModel, options_of()), eval_tokens(97), "plain").value();
  const LogprobRecord varied = record_logprobs(*faulty_factory({.fault = Fault::kVariedWoAScales})(options_of()).value(), eval_tokens(97), "varied").value();
  for (size_t i = 0; i < plain.rows.size(); ++i) {
    for (size_t k = 0; k < plain.rows[i].top.size(); ++k) ASSERT_EQ(plain.rows[i].top[k].logprob, varied.rows[i].top[k].logprob) << "position " << i;
  }
}

TEST(FaultTableControl, every_fault_has_a_name) {
  for (const Row& row : kTable) EXPECT_NE(row.plan.fault, Fault::kNone);
  EXPECT_EQ(fault_from_name("reader_stride"), Fault::kReaderStride);
  EXPECT_FALSE(fault_from_name("reader").has_value());
}

TEST(FaultTableControl, no_fault_no_alarm) {
  const FaultPlan none;
  for (const Check check : {by_validate, by_accuracy, by_logprobs, by_suite, by_probe, by_canary}) EXPECT_EQ(check(none), "");
}

}  // namespace
}  // namespace dsv4
