// The benchmark contract, the lab and the profiler on the shipped model.
#include <gtest/gtest.h>

#include <algorithm>

#include "bench/contract.h"
#include "bench/lab.h"
#include "bench/profile.h"
#include "faulty_device.h"
#include "test_engine.h"

namespace dsv4 {
namespace {

std::unique_ptr<Engine> contract_engine() { return test_engine(kTinyModel, contract_engine_options({})); }

std::unique_ptr<Engine> faulty_engine(Fault fault, const EngineOptions& options = contract_engine_options({})) {
  return std::move(Engine::create(Checkpoint::open(kTinyModel, {}).value(), make_faulty_device(test_device(), {.fault = fault}), options).value());
}

TEST(Contract, prompts_are_12_of_65_tokens_and_differ) {
  const auto engine = contract_engine();
  const auto prompts = contract_prompts(*engine).value();
  ASSERT_EQ(prompts.size(), 12u);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(prompts[i].size(), 65u);
    for (size_t k = 0; k < i; ++k) EXPECT_NE(prompts[i], prompts[k]);
  }
}

// Sound runs are commands_test.sh's. This one is wrong in every way: a spoilt answer, a warm repeat, canaries that fail.
TEST(Contract, void_runs_say_why) {
  EngineOptions options = contract_engine_options({});
  options.prefix_states = 40;
  const auto engine = faulty_engine(Fault::kUnnormalisedExperts, options);
  const ContractReport report = run_contract(*engine, {.repeats = 1}).value();
  ASSERT_TRUE(report.is_void());
  const auto says = [&](const std::string& words) {
    return std::any_of(report.void_reasons.begin(), report.void_reasons.end(), [&](const std::string& r) { return r.find(words) == 0; });
  };
  EXPECT_TRUE(says("repeat of prompt 0: not cold: 64 prompt tokens came from the prefix cache")) << to_text(report);
  EXPECT_TRUE(says("suite of prompt 1: early end: ")) << to_text(report);
  EXPECT_TRUE(says("canary arithmetic: answered ")) << to_text(report);
  EXPECT_NE(to_text(report).find("VOID: these are not numbers"), std::string::npos);
  EXPECT_EQ(report.rows[0].kind, "headline");
  EXPECT_EQ(report.rows[12].kind, "repeat");
  EXPECT_EQ(report.suite_speeds().size(), 12u);
  const ContractReport back = parse_contract(to_json(report), "run.json").value();
  EXPECT_EQ(back.void_reasons, report.void_reasons);
  EXPECT_EQ(identity_differences(report.manifest, back.manifest, {"dirty", "commit"}).size(), 0u);
}

TEST(Contract, validate_voids_a_faulty_run) {
  const auto engine = faulty_engine(Fault::kSkippedSink);
  const ContractReport report = run_contract(*engine, {.repeats = 0, .run_canaries = false, .validate = true}).value();
  ASSERT_TRUE(report.is_void());
  EXPECT_NE(report.void_reasons[0].find("validate: request "), std::string::npos) << report.void_reasons[0];
}

TEST(Lab, a_change_that_computes_something_else_is_not_measured) {
  const Experiment e = parse_experiment("name = \"chunk\"\nchange = \"smaller chunks\"\nrounds = 1\nnew_tokens = 4\n[a]\n[b]\nchunk = 16\n", "e.toml").value();
  const LabFactory faulty = [](const LabSettings& settings) -> Result<std::unique_ptr<Engine>> {
    if (settings.count("chunk") == 0) return test_factory(kTinyModel)(contract_engine_options({}));
    return faulty_engine(Fault::kTransposedWoAScales);
  };
  const LabOutcome refused = run_lab(e, faulty).value();
  EXPECT_EQ(refused.verdict, "gate failed");
  EXPECT_TRUE(refused.speeds_a.empty());
}

TEST(Profile, adds_up) {
  const auto engine = contract_engine();
  const ProfileReport report = run_profile(*engine, {.steps = 4, .context_tokens = 16}).value();
  EXPECT_GT(report.headline_seconds, 0);
  EXPECT_GT(report.peak_bandwidth, 1e8);
  double seconds = report.gap_seconds, share = 0;
  for (const ProfiledComponent& c : report.components) {
    seconds += c.seconds;
    share += c.share;
    EXPECT_NE(c.name, "other");
  }
  EXPECT_NEAR(seconds, report.profiled_seconds, 1e-9);
  EXPECT_LE(share, 1);
  EXPECT_GT(share, 0.5) << "most of a step is in its operators";
  const auto experts = std::find_if(report.ops.begin(), report.ops.end(), [](const ProfiledOp& op) { return op.op == "moe_experts"; });
  ASSERT_NE(experts, report.ops.end());
  EXPECT_EQ(experts->calls, engine->config().num_layers);
  EXPECT_GT(experts->bytes, 0);
  EXPECT_TRUE(engine->idle());
  const std::string svg = to_flame_svg(report);
  EXPECT_EQ(svg.find("<svg "), 0u);
  EXPECT_NE(svg.find("routed experts"), std::string::npos);
  EXPECT_NE(to_text(report).find("gaps (residual)"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
