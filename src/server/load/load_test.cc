#include <gtest/gtest.h>

#include <cmath>

#include "server/fake_server.h"
#include "server/load/load_report.h"

namespace dsv4 {
namespace {

TEST(LoadPlan, length_mixes) {
  const LengthMix mix = parse_length_mix("64:0.7,1024:0.3,10-50", "--x").value();
  ASSERT_EQ(mix.parts.size(), 3u);
  EXPECT_EQ(mix.parts[1].low, 1024);
  EXPECT_EQ(mix.parts[1].share, 0.3);
  EXPECT_EQ(mix.parts[2].high, 50);
  for (const char* bad : {"", "x", "5:", "5:0", "9-3", "0", "5,,6", "5:-1", "-5"}) EXPECT_FALSE(parse_length_mix(bad, "--x").ok()) << bad;
}

TEST(LoadPlan, is_the_same_for_a_seed_and_has_the_shares_asked_for) {
  LoadOptions o;
  o.num_requests = 4000;
  o.rate = 10;
  o.vocab_size = 1000;
  o.prompt_tokens = parse_length_mix("20:0.75,40:0.25", "--x").value();
  o.shared_prefix_tokens = 16;
  o.cancel_share = 0.1;
  const auto a = plan_load(o), b = plan_load(o);
  int64_t longer = 0, cancelled = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].prompt, b[i].prompt);
    EXPECT_TRUE(std::equal(a[0].prompt.begin(), a[0].prompt.begin() + 16, a[i].prompt.begin()));
    longer += a[i].prompt.size() == 40;
    cancelled += a[i].cancel_after >= 0;
    for (const int32_t t : a[i].prompt) EXPECT_TRUE(t >= 100 && t < 1000);
    if (i > 0) EXPECT_GE(a[i].at_seconds, a[i - 1].at_seconds);
  }
  EXPECT_NEAR(static_cast<double>(longer) / 4000, 0.25, 0.03);
  EXPECT_NEAR(static_cast<double>(cancelled) / 4000, 0.1, 0.03);
  EXPECT_NEAR(a.back().at_seconds, 400, 30);  // 10 a second
  o.seed = 2;
  EXPECT_NE(plan_load(o)[0].prompt, a[0].prompt);
}

TEST(LoadReport, quantiles_are_values_that_occurred) {
  std::vector<double> v;
  for (int i = 100; i > 0; --i) v.push_back(i);
  const Quantiles q = quantiles_of(v);
  EXPECT_EQ(q.p50, 50);
  EXPECT_EQ(q.p95, 95);
  EXPECT_EQ(q.p99, 99);
  EXPECT_EQ(q.max, 100);
  EXPECT_EQ(quantiles_of({}).count, 0u);
  EXPECT_EQ(quantiles_of({7}).p99, 7);
}

TEST(LoadReport, figures_of_known_results) {
  LoadResult a;
  a.finish = "length";
  a.chunk_seconds = {0.5, 1.0, 2.0};
  a.end_seconds = 2.0;
  a.prompt_tokens = 10;
  a.answer_tokens = 3;
  LoadResult slow = a;
  slow.sent_seconds = 2.0;
  slow.chunk_seconds = {3.0, 3.5, 4.0};
  slow.end_seconds = 4.0;
  LoadResult failed;
  failed.finish = "error";
  failed.status = 429;
  failed.error = "full";
  LoadResult left = a;
  left.finish = "cancelled";
  const LoadSummary s = summarize({a, slow, failed, left}, {.first_token_seconds = 1});
  EXPECT_EQ(s.completed, 2u);
  EXPECT_EQ(s.failed, 1u);
  EXPECT_EQ(s.cancelled, 1u);
  EXPECT_EQ(s.good, 1u);
  EXPECT_EQ(s.seconds, 6);
  EXPECT_EQ(s.answer_tokens_per_second, 1);
  EXPECT_EQ(s.first_token.max, 3);
  EXPECT_EQ(s.per_token.max, 0.75);
  EXPECT_EQ(s.gap.max, 1.0);
  EXPECT_EQ(s.errors, std::vector<std::string>{"429: full"});
  EXPECT_NE(report_svg({a, slow}).find("polyline"), std::string::npos);
  EXPECT_NE(report_svg({}).find("</svg>"), std::string::npos);
}

// Against real endpoints over a fake engine: lengths come back as planned, cancelled requests free their places, refusals are counted.
TEST(LoadRun, against_a_server) {
  FakeEngine engine;
  engine.step_us = 300;
  engine.max_running = 8;
  FakeServer server(engine, 64, 900);
  ASSERT_NE(server.http, nullptr);
  LoadTarget target;
  target.url = server.url();
  const auto facts = ask_server(target);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_EQ(facts->model, "fake");
  EXPECT_EQ(facts->vocab_size, 2000);
  LoadOptions load;
  load.num_requests = 60;
  load.concurrency = 12;
  load.vocab_size = facts->vocab_size;
  load.answer_tokens = parse_length_mix("5-40", "--x").value();
  load.cancel_share = 0.3;
  for (const double rate : {0.0, 400.0}) {
    load.rate = rate;
    const auto plan = plan_load(load);
    const auto results = run_load(target, plan, load);
    ASSERT_TRUE(results.ok());
    size_t cancelled = 0;
    for (size_t i = 0; i < plan.size(); ++i) {
      const LoadResult& r = (*results)[i];
      cancelled += r.finish == "cancelled";
      if (r.finish == "cancelled") continue;
      EXPECT_EQ(r.finish, "length") << r.error;
      EXPECT_EQ(r.answer_tokens, plan[i].answer_tokens);
      EXPECT_EQ(r.prompt_tokens, 64);
      EXPECT_EQ(r.text, std::string(static_cast<size_t>(r.answer_tokens), 'x'));
    }
    EXPECT_GT(cancelled, 5u);
    for (int i = 0; i < 200 && server.loop.outstanding() != 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(server.loop.outstanding(), 0);
  }
  LoadRequest too_long;
  too_long.prompt.assign(1000, 7);
  too_long.answer_tokens = 5;
  const LoadResult refused = run_one(target, too_long);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.finish, "error");
  target.url = "http://127.0.0.1:1";
  EXPECT_FALSE(ask_server(target).ok());
}

}  // namespace
}  // namespace dsv4
