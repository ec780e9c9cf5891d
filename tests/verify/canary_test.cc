#include "verify/canary.h"

#include <gtest/gtest.h>

#include "faulty_device.h"
#include "test_engine.h"
#include "verify/probe.h"
#include "verify/prompts.h"

namespace dsv4 {
namespace {

TEST(Canary, the_shipped_model_passes_its_own) {
  const auto engine = test_engine(kTinyModel, {.max_context_tokens = 512, .max_seqs = 1});
  const CanaryFile file = load_model_canaries(kTinyModel).value();
  EXPECT_TRUE(file.verified);
  const CanaryReport report = run_canaries(*engine, file).value();
  for (const CanaryLine& line : report.lines) EXPECT_TRUE(line.passed) << to_text(line);
  EXPECT_TRUE(report.passed);
  // Arithmetic by changed input: A, B, A in one process.
  ASSERT_GE(report.lines.size(), 7u);
  EXPECT_EQ(report.lines[0].got, "1073");
  EXPECT_EQ(report.lines[1].got, "437");
  EXPECT_EQ(report.lines[2].got, "1073");
}

TEST(Canary, the_published_models_file_reads_and_says_it_is_unverified) {
  const auto file = load_canaries("models/canaries-deepseek-v4.json");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_FALSE(file->verified);
  EXPECT_EQ(file->canaries.size(), 5u);
}

TEST(Canary, faults_of_answers) {
  const ChatMarkup markup = PromptEncoder::load(kTinyModel)->markup();
  const auto fault = [&](CanaryKind kind, const char* want, const std::string& answer) {
    CanaryStep step;
    step.kind = kind;
    step.want = want;
    return canary_fault(step, answer, markup);
  };
  EXPECT_EQ(fault(CanaryKind::kAnswer, "1073", " 1073\n"), "");
  EXPECT_EQ(fault(CanaryKind::kAnswer, "1073", "10730"), "answered \"10730\" instead of \"1073\"");
  EXPECT_EQ(fault(CanaryKind::kContains, "Paris", "It is Paris."), "");
  EXPECT_NE(fault(CanaryKind::kContains, "Paris", "It is paris."), "");
  EXPECT_EQ(fault(CanaryKind::kJson, R"({"a":1,"b":"x"})", R"({"b": "x", "a": 1})"), "");
  EXPECT_NE(fault(CanaryKind::kJson, R"({"a":1})", R"({"a": 1.5})"), "");
  EXPECT_NE(fault(CanaryKind::kJson, R"({"a":1})", R"(Sure: {"a": 1})"), "");
  EXPECT_NE(fault(CanaryKind::kJson, R"({"a":1})", R"({"a": 1, "a": 1})"), "") << "strict: no duplicate members";
  const std::string call = "\n\n<" + markup.dsml + "tool_calls>\n<" + markup.dsml + "invoke name=\"get_weather\">\n<" + markup.dsml +
                           "parameter name=\"city\" string=\"true\">Paris</" + markup.dsml + "parameter>\n</" + markup.dsml + "invoke>\n</" + markup.dsml +
                           "tool_calls>" + markup.eos;
  const char* want = R"({"name":"get_weather","arguments":{"city":"Paris"}})";
  EXPECT_EQ(fault(CanaryKind::kCall, want, call), "");
  EXPECT_NE(fault(CanaryKind::kCall, want, "Sunny." + markup.eos), "");
  EXPECT_NE(fault(CanaryKind::kCall, R"({"name":"get_weather","arguments":{"city":"Rome"}})", call), "");
}

TEST(Canary, bad_files_name_the_place) {
  const auto message = [](const char* json) { return parse_canaries(json, "c.json").status().message(); };
  EXPECT_EQ(message("[]"), "c.json: top: an object is expected");
  EXPECT_EQ(message("{\"canaries\": []}"), "c.json: canaries: a nonempty array is expected");
  EXPECT_EQ(message(R"({"canaries": [{"name": "a", "steps": [{"message": "x"}]}]})"),
            "c.json: canaries[0].steps[0]: exactly one of answer, contains, json and call is needed");
  EXPECT_EQ(message(R"({"canaries": [{"name": "a", "steps": [{"message": "x", "answer": "1", "contains": "1"}]}]})"),
            "c.json: canaries[0].steps[0]: exactly one of answer, contains, json and call is needed");
  EXPECT_EQ(message(R"({"canaries": [{"name": "a", "steps": [{"message": "x", "awnser": "1"}]}]})"), "c.json: canaries[0].steps[0]: unknown member \"awnser\"");
}

TEST(Probe, the_shipped_model_is_coherent) {
  const auto engine = test_engine(kTinyModel, {.max_context_tokens = 512, .max_seqs = 1});
  const ProbeOutput out = probe_engine(*engine, {}).value();
  EXPECT_EQ(out.verdict.verdict, Verdict::kCoherent) << out.verdict.reason;
  EXPECT_GE(out.tokens.size(), 32u);
  EXPECT_EQ(out.token_decode.size(), out.tokens.size());
  EXPECT_TRUE(check_generates(*engine, {}).ok());
  EXPECT_TRUE(engine->idle());
  const ProbeOutput known = probe_engine(*engine, {.message = "What is 512 + 561?", .known_answer = "1073"}).value();
  EXPECT_TRUE(known.coherent()) << known.verdict.reason;
  EXPECT_EQ(probe_engine(*engine, {.message = "What is 512 + 561?", .known_answer = "1074"})->verdict.verdict, Verdict::kMismatch);
  EXPECT_EQ(probe_engine(*engine, {.message = "What is 512 + 561?"})->verdict.verdict, Verdict::kFirstTokenOnly) << "5 tokens of 32";
}

TEST(Probe, stages_stop_at_the_first_fault) {
  ProbePlan plan;
  plan.model = "no/such/model";
  plan.make_device = [] { return Result<std::unique_ptr<Device>>(test_device()); };
  std::vector<std::string> seen;
  const ProbeReport report = run_probe(plan, [&](const ProbeStage& s) { seen.push_back(to_text(s)); });
  EXPECT_EQ(report.verdict.verdict, Verdict::kError);
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_EQ(report.stage_reached, "config");
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0], "### STAGE: env");
  EXPECT_EQ(seen[2], "### STAGE: config");
  EXPECT_NE(seen[3].find("FAILED"), std::string::npos);
  EXPECT_EQ(to_text(report).find("VERDICT: ERROR (stage config: no/such/model"), 0u) << to_text(report);
}

TEST(Probe, full_run_prints_what_a_log_needs) {
  ProbePlan plan;
  plan.model = kTinyModel;
  plan.engine.max_context_tokens = 512;
  plan.make_device = [] { return Result<std::unique_ptr<Device>>(test_device()); };
  const ProbeReport report = run_probe(plan);
  EXPECT_EQ(report.exit_code(), 0);
  ASSERT_EQ(report.stages.size(), 5u);
  const std::string text = to_text(report);
  for (const char* line :
       {"TOKEN_IDS: [", "FINISH_REASON: length", "TOKEN_DECODE: ['", "OUTPUT_REPR: 'Once there was", "OUTPUT: Once there was", "VERDICT: COHERENT ("}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(Probe, faults_are_not_coherent) {
  for (const Fault fault : {Fault::kReader584Bytes, Fault::kLogitsNan}) {
    auto engine = Engine::create(Checkpoint::open(kTinyModel, {}).value(), make_faulty_device(test_device("cpu"), {.fault = fault}),
                                 {.max_context_tokens = 512, .max_seqs = 1})
                      .value();
    const ProbeOutput out = probe_engine(*engine, {}).value();
    EXPECT_FALSE(out.coherent()) << static_cast<int>(fault) << ": " << out.text;
    if (fault == Fault::kLogitsNan) EXPECT_EQ(out.verdict.verdict, Verdict::kNonfinite);
  }
}

TEST(Canary, a_value_that_is_not_finite_fails_the_line) {
  auto engine = Engine::create(Checkpoint::open(kTinyModel, {}).value(), make_faulty_device(test_device("cpu"), {.fault = Fault::kLogitsNan}),
                               {.max_context_tokens = 512, .max_seqs = 1})
                    .value();
  const auto report = run_canaries(*engine, load_model_canaries(kTinyModel).value());
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_FALSE(report->passed);
  for (const CanaryLine& line : report->lines) EXPECT_NE(line.fault.find("hold a NaN"), std::string::npos) << line.fault;
}

TEST(Prompts, repr) {
  EXPECT_EQ(python_repr("a'b\n\\\x01"), "'a\\'b\\n\\\\\\x01'");
  EXPECT_EQ(python_repr("你"), "'你'");
}

}  // namespace
}  // namespace dsv4
