// Steps against the machine's roofline, on the shipped model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/roofline.h"
#include "test_engine.h"

namespace dsv4 {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Engine> small_engine() {
  EngineOptions options;
  options.max_seqs = 3;
  options.prefill_chunk = 64;
  options.max_context_tokens = 512;
  options.prefix_states = 0;
  options.prompts_give_way = false;  // as bench cpu: whole chunks
  return test_engine(kTinyModel, options);
}

RooflineReport report_of(Engine& engine) {
  RooflineReport report;
  report.manifest = make_manifest(engine, "test");
  for (auto& [name, value] : report.manifest.fields) {
    if (name == "dirty") value = "no";
    if (name == "commit") value = "0123";
  }
  const auto second = small_engine();
  const DecodeRun runs[] = {{&engine, 1, 40}, {second.get(), 3, 40}};
  report.timings = time_decode(runs, 11).value();  // more than a turn
  report.timings.push_back(time_prefill(engine, 64, 1).value());
  for (StepTiming& t : report.timings) t.peaks = {1e10, 1e11};
  return report;
}

TEST(Roofline, steps_and_operators_are_timed) {
  const auto engine = small_engine();
  const RooflineReport report = report_of(*engine);
  EXPECT_TRUE(engine->idle());
  for (const StepTiming& t : report.timings) {
    EXPECT_GT(t.min, 0);
    EXPECT_LE(t.min, t.median);
    EXPECT_LE(t.median, t.max);
    EXPECT_GT(t.cost().bytes, 1000000) << t.shape.name();
    EXPECT_GT(t.bytes_of("moe_experts"), 0);
    EXPECT_EQ(t.bytes_of("no such operator"), 0);
  }
  EXPECT_EQ(report.timings[0].shape.name(), "decode 1 x 40");
  EXPECT_EQ(report.timings[2].shape.name(), "prefill 64");
  EXPECT_EQ(report.timings[1].shape.rows, 3);
  // The first sequence's prompt and answer do not depend on its company.
  const std::vector<int32_t>&alone = report.timings[0].tokens, &together = report.timings[1].tokens;
  ASSERT_GT(alone.size(), 4u);
  EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + 4, together.begin()));
  ASSERT_EQ(report.batch_gains().size(), 1u);
  EXPECT_GT(report.batch_gains()[0].without_extra_experts, report.batch_gains()[0].plain);
  EXPECT_THAT(to_text(report), HasSubstr("decode 3 x 40"));
}

TEST(Roofline, a_fall_in_shares_is_found) {
  const auto engine = small_engine();
  const RooflineReport a = report_of(*engine);
  const RooflineReport same = parse_roofline(to_json(a), "a.json").value();
  EXPECT_THAT(compare_rooflines(a, same, {}).value(), HasSubstr("undecided"));
  RooflineReport slower = same;
  slower.timings[1].median *= 1.3;
  EXPECT_THAT(compare_rooflines(a, slower, {}).value(), HasSubstr("reject"));
  EXPECT_THAT(compare_rooflines(slower, a, {}).value(), HasSubstr("promote"));
  // A machine that became slower as a whole is no regression.
  RooflineReport elsewhere = same;
  for (StepTiming& t : elsewhere.timings) {
    t.median *= 2;
    t.peaks = {5e9, 5e10};
  }
  EXPECT_THAT(compare_rooflines(a, elsewhere, {}).value(), HasSubstr("undecided"));
  RooflineReport other = same;
  other.manifest.fields.front().second = "another";
  EXPECT_THAT(compare_rooflines(a, other, {}).status().message(), HasSubstr("different identities"));
  other = same;
  other.timings.pop_back();
  EXPECT_FALSE(compare_rooflines(a, other, {}).ok());
}

TEST(Roofline, what_does_not_fit_is_refused) {
  const auto engine = small_engine();
  const auto decode = [&](int64_t sequences, int64_t context) {
    const DecodeRun run{engine.get(), sequences, context};
    return time_decode({&run, 1}, 3).status();
  };
  EXPECT_THAT(decode(4, 40).message(), HasSubstr("computes 3 together"));
  EXPECT_THAT(time_prefill(*engine, 65, 1).status().message(), HasSubstr("one chunk of 64"));
  EXPECT_FALSE(decode(1, 0).ok());
  EXPECT_THAT(parse_roofline("{\"kind\": \"dsv4-contract\"}", "x.json").status().message(), HasSubstr("x.json"));
  EXPECT_FALSE(parse_roofline(R"({"kind": "dsv4-roofline", "manifest": {}})", "x.json").ok());
}

}  // namespace
}  // namespace dsv4
