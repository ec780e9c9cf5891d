// Identities, statistics, records and the ledger: what needs no engine.
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "bench/contract.h"
#include "bench/lab.h"
#include "bench/profile.h"
#include "bench/statistics.h"
#include "bench/steps.h"

namespace dsv4 {
namespace {

Manifest manifest() {
  Manifest m;
  m.fields = {{"commit", "abc"},          {"dirty", "no"},         {"compiler", "GNU 12"}, {"backend", "cpu"}, {"device", "x"},
              {"model_identity", "1234"}, {"option.graph", "full"}};
  return m;
}

ContractReport report_of(double speed, double wobble = 0) {
  ContractReport r;
  r.manifest = manifest();
  for (int64_t i = 0; i < kContractPrompts; ++i) {
    ContractRow row;
    row.kind = i == 0 ? "headline" : "suite";
    row.prompt = i;
    row.prompt_tokens = kContractPromptTokens;
    row.new_tokens = kContractNewTokens;
    row.decode_seconds = 127 / (speed * (1 + 0.02 * static_cast<double>(i) + wobble * static_cast<double>(i % 3 - 1)));
    row.finish = "length";
    r.rows.push_back(row);
  }
  ContractRow repeat = r.rows[0];
  repeat.kind = "repeat";
  repeat.decode_seconds = 1e-6;  // would spoil the suite if it were mixed in
  r.rows.push_back(repeat);
  r.canary = "7 of 7 steps";
  return r;
}

TEST(Statistics, bootstrap_brackets_the_ratio) {
  const std::vector<double> a{100, 110, 90, 105, 95, 101}, b{110, 122, 98, 116, 104, 111};
  const RatioInterval r = paired_bootstrap(a, b);
  EXPECT_NEAR(r.ratio, 1.1, 0.01);
  EXPECT_LT(r.low, r.ratio);
  EXPECT_GT(r.high, r.ratio);
  EXPECT_EQ(verdict_of(r), "promote");
  EXPECT_EQ(verdict_of(paired_bootstrap(b, a)), "reject");
  EXPECT_EQ(paired_bootstrap(a, b).low, r.low) << "the same seed, the same interval";
  const std::vector<double> c{100, 121, 81, 110, 90, 103};
  EXPECT_EQ(verdict_of(paired_bootstrap(a, c)), "undecided");
  EXPECT_EQ(verdict_of(paired_bootstrap(a, a)), "undecided") << "no gain is no promotion";
}

TEST(Contract, suite_leaves_repeats_out) {
  const ContractReport r = report_of(100);
  EXPECT_EQ(r.suite_speeds().size(), 12u);
  EXPECT_NEAR(r.median(), 111, 0.01);
  EXPECT_LT(r.p10(), r.median());
}

TEST(Contract, round_trip_through_json) {
  const ContractReport r = report_of(100);
  const auto back = parse_contract(to_json(r), "a.json");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->manifest.fields, r.manifest.fields);
  EXPECT_NEAR(back->median(), r.median(), 1e-9);
  EXPECT_EQ(back->rows.size(), r.rows.size());
  for (const char* bad : {"[]", "{}", R"({"kind": "dsv4-contract"})", R"({"kind": "dsv4-contract", "manifest": {"identity": {"a": 1}}, "rows": []})",
                          R"({"kind": "dsv4-contract", "manifest": {"identity": {}}, "rows": [{}]})", "not json"}) {
    EXPECT_FALSE(parse_contract(bad, "bad.json").ok()) << bad;
  }
}

TEST(Contract, compare) {
  const auto text = compare_contracts(report_of(100), report_of(110), {});
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("ratio B/A  1.1000"), std::string::npos) << *text;
  EXPECT_NE(text->find("\npromote\n"), std::string::npos);
  EXPECT_NE(compare_contracts(report_of(100), report_of(99), {})->find("\nreject\n"), std::string::npos);
  EXPECT_NE(compare_contracts(report_of(100), report_of(100, 0.01), {})->find("\nundecided\n"), std::string::npos);
}

TEST(Contract, compare_refuses) {
  ContractReport other = report_of(110);
  other.manifest.fields[6].second = "eager";
  const auto refused = compare_contracts(report_of(100), other, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("option.graph: full against eager"), std::string::npos);
  EXPECT_TRUE(compare_contracts(report_of(100), other, {"option.graph"}).ok());
  ContractReport bad = report_of(110);
  bad.void_reasons.push_back("suite of prompt 3: early end");
  EXPECT_NE(compare_contracts(report_of(100), bad, {}).status().message().find("B is void: suite of prompt 3: early end"), std::string::npos);
  ContractReport still = report_of(110);
  still.rows[4].decode_seconds = 0;
  EXPECT_FALSE(compare_contracts(report_of(100), still, {}).ok());
}

TEST(Steps, cases_as_text) {
  const auto c = parse_decode_case("16x4096");
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->rows, 16);
  EXPECT_EQ(c->context_tokens, 4096);
  for (const char* bad : {"", "16", "16x", "x5", "0x5", "5x0", "1x2x3", "-1x5", "1 x 5"}) EXPECT_FALSE(parse_decode_case(bad).ok()) << bad;
}

TEST(Steps, counts_what_it_ran) {
  StepBenchOptions options;
  options.prompts = {5};
  options.decodes = {{1, 3}, {3, 4}};
  options.prompt_runs = 2;
  options.steps = 3;
  const EngineOptions engine_options = step_bench_engine_options({.prefill_chunk = 8}, options);
  EXPECT_EQ(engine_options.max_seqs, 3);
  auto checkpoint = Checkpoint::open("synthetic:tiny", {.num_layers = 3});
  ASSERT_TRUE(checkpoint.ok());
  auto engine = Engine::create(std::move(*checkpoint), make_reference_device(2), engine_options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto report = run_step_bench(**engine, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->rows.size(), 3u);
  EXPECT_EQ(report->rows[0].kind, "prompt");
  EXPECT_EQ(report->rows[0].count, 2);
  EXPECT_EQ(report->rows[2].rows, 3);
  for (const StepBenchRow& row : report->rows) {
    EXPECT_GT(row.min_seconds, 0);
    EXPECT_LE(row.min_seconds, row.median_seconds);
    EXPECT_LE(row.median_seconds, row.max_seconds);
    if (row.kind == "decode") EXPECT_EQ(row.count, 3);
  }
  EXPECT_TRUE((*engine)->idle());
  EXPECT_NE(to_json(*report).find("\"kind\": \"dsv4-steps\""), std::string::npos);
  // A case that does not fit is refused, not measured with half its rows.
  options.decodes = {{3, 500}};
  options.prompts.clear();
  EXPECT_EQ(run_step_bench(**engine, options).status().code(), StatusCode::kResourceLimit);
}

TEST(Lab, experiment_files) {
  const auto good = parse_experiment("name = \"g\"\nchange = \"c\"\nrounds = 3\nmax_kl = 0\n[a]\ngraph = \"eager\"\n[b]\ngraph = \"full\"\n", "e.toml");
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(good->varied, "graph");
  EXPECT_EQ(good->rounds, 3);
  EXPECT_EQ(good->max_kl, 0);
  const auto message = [](const char* text) { return parse_experiment(text, "e.toml").status().message(); };
  EXPECT_EQ(message("name = \"g\"\nchange = \"c\"\n[a]\ngraph = \"eager\"\nchunk = 64\n[b]\ngraph = \"full\"\n"),
            "e.toml: [a] and [b] differ in 2 settings, an experiment is one change");
  EXPECT_EQ(message("name = \"g\"\nchange = \"c\"\n[a]\n[b]\n"), "e.toml: [a] and [b] differ in 0 settings, an experiment is one change");
  EXPECT_EQ(message("name = \"g\"\nchange = \"c\"\n[a]\nfoo = 1\n"), "e.toml: a: unknown setting \"foo\"");
  EXPECT_EQ(message("name = 3\n"), "e.toml: name must be a text");
  EXPECT_EQ(message("rounds = \"x\"\n"), "e.toml: rounds must be an integer from 1 to 100000");
  EXPECT_EQ(message("nmae = \"x\"\n"), "e.toml: unknown key \"nmae\"");
  EXPECT_NE(message("name = \n").find("e.toml: line 1"), std::string::npos);
}

LabOutcome outcome(const std::string& gate) {
  LabOutcome o;
  o.experiment.name = "g";
  o.experiment.change = "a | change";
  o.experiment.varied = "graph";
  o.a = o.b = manifest();
  o.gate = gate;
  o.speeds_a = {100, 101};
  o.speeds_b = {90, 91};
  o.ratio = {0.9, 0.89, 0.91};
  o.verdict = gate.empty() ? "reject" : "gate failed";
  return o;
}

TEST(Lab, ledger_keeps_negative_results_and_renders) {
  const std::string path = testing::TempDir() + "dsv4_ledger.jsonl";
  std::remove(path.c_str());
  ASSERT_TRUE(append_to_ledger(path, outcome("")).ok());
  ASSERT_TRUE(append_to_ledger(path, outcome("canary json of B: no")).ok());
  const std::string text = read_file(path).value();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  const auto page = render_ledger(text, path);
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_NE(page->find("| g | a / change | x | 100.50 | 90.50 | 0.9000 (0.8900 to 0.9100) | reject |"), std::string::npos) << *page;
  EXPECT_NE(page->find("| gate failed: canary json of B: no |"), std::string::npos) << *page;
  EXPECT_FALSE(render_ledger("{}\n", "l").ok());
  ASSERT_TRUE(write_file_atomic(path, "{\"name\": \"half").ok());
  EXPECT_FALSE(append_to_ledger(path, outcome("")).ok()) << "a torn line is not built upon";
}

TEST(Profile, every_operator_of_the_forward_pass_has_a_component) {
  for (const char* op : {"embed",
                         "rope_table",
                         "hc_pre",
                         "hc_post",
                         "hc_head",
                         "attn_in",
                         "q_norm",
                         "wq_b",
                         "query_norm_rope",
                         "kv_insert",
                         "compressor_step",
                         "index_compressor_step",
                         "indexer_query",
                         "indexer_topk",
                         "sparse_attention",
                         "wo_a",
                         "wo_b",
                         "ffn_in",
                         "moe_route",
                         "swiglu",
                         "shared_w2",
                         "moe_experts",
                         "moe_all",
                         "gate",
                         "hc_post_pre",
                         "lm_head",
                         "argmax",
                         "sample"}) {
    EXPECT_NE(component_of(op), "other") << op;
  }
  EXPECT_EQ(component_of("new_op"), "other");
}

}  // namespace
}  // namespace dsv4
