#include "server/engine_loop.h"

#include <gtest/gtest.h>

#include "server/fake_engine.h"

namespace dsv4 {
namespace {

using std::chrono::milliseconds;

Request request_of(int64_t max_new_tokens, size_t prompt_tokens = 1) {
  Request r;
  r.prompt.assign(prompt_tokens, 5);
  r.max_new_tokens = max_new_tokens;
  return r;
}

std::vector<TokenOutput> collect(Ticket& ticket, milliseconds limit = milliseconds(5000)) {
  std::vector<TokenOutput> all;
  const auto until = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < until && (all.empty() || all.back().finish == FinishReason::kNone)) {
    for (TokenOutput& o : ticket.take(milliseconds(20))) all.push_back(std::move(o));
  }
  return all;
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(10));
  return condition();
}

struct Counting : LoopListener {
  std::atomic<int> rejected{0}, first_tokens{0}, tokens{0}, ended{0}, timed_out{0};
  void on_rejected() override { ++rejected; }
  void on_token(double, bool first) override { ++(first ? first_tokens : tokens); }
  void on_end(const Ended& e) override {
    ++ended;
    timed_out += e.timed_out;
  }
};

std::shared_ptr<Ticket> submit_one(EngineLoop& loop, Request request) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  auto tickets = loop.submit(std::move(requests));
  EXPECT_TRUE(tickets.ok()) << tickets.status().message();
  return tickets.ok() ? (*tickets)[0] : nullptr;
}

void wait_ready(EngineLoop& loop) {
  ASSERT_TRUE(eventually([&] { return loop.state() == LoopState::kReady; }));
}

TEST(EngineLoop, delivers_all_tokens_in_order_and_one_end) {
  FakeEngine engine;
  Counting counting;
  engine.script = [](const Request&) { return std::vector<FakeEngine::Piece>{{1, "a"}, {2, "b"}, {3, "c"}}; };
  EngineLoop loop(engine, {}, &counting);
  wait_ready(loop);
  auto ticket = submit_one(loop, request_of(10));
  ASSERT_TRUE(ticket->wait_accepted(milliseconds(1000))->ok());
  const auto outputs = collect(*ticket);
  ASSERT_EQ(outputs.size(), 4u);
  EXPECT_EQ(outputs[0].text + outputs[1].text + outputs[2].text, "abc");
  EXPECT_EQ(outputs[3].finish, FinishReason::kEos);
  EXPECT_TRUE(eventually([&] { return loop.outstanding() == 0; }));
  EXPECT_EQ(counting.first_tokens, 1);
  EXPECT_EQ(counting.tokens, 2);
  EXPECT_EQ(counting.ended, 1);
}

TEST(EngineLoop, the_engine_s_refusal_reaches_the_caller) {
  FakeEngine engine;
  EngineLoop loop(engine, {});
  wait_ready(loop);
  auto ticket = submit_one(loop, request_of(1, 2000));
  EXPECT_EQ(ticket->wait_accepted(milliseconds(1000))->code(), StatusCode::kResourceLimit);
  const auto outputs = collect(*ticket);
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].finish, FinishReason::kError);
  EXPECT_TRUE(eventually([&] { return loop.outstanding() == 0; }));
}

TEST(EngineLoop, one_more_than_the_limit_is_refused_and_a_group_is_refused_whole) {
  FakeEngine engine;
  engine.step_us = 2000;
  Counting counting;
  EngineLoop loop(engine, {.max_outstanding = 3}, &counting);
  wait_ready(loop);
  auto a = submit_one(loop, request_of(100000));
  auto b = submit_one(loop, request_of(100000));
  std::vector<Request> two;
  two.push_back(request_of(1));
  two.push_back(request_of(1));
  const auto refused = loop.submit(std::move(two));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceLimit);
  EXPECT_EQ(counting.rejected, 1);
  EXPECT_GE(loop.retry_after_seconds(), 1);
  auto c = submit_one(loop, request_of(1));  // one still fits
  loop.cancel(a);
  loop.cancel(b);
  collect(*c);
  EXPECT_TRUE(eventually([&] { return loop.outstanding() == 0; }));
}

TEST(EngineLoop, cancel_frees_within_a_step_and_disturbs_nobody) {
  FakeEngine engine;
  engine.step_us = 1000;
  EngineLoop loop(engine, {});
  wait_ready(loop);
  auto victim = submit_one(loop, request_of(1000000));
  auto other = submit_one(loop, request_of(60));
  ASSERT_TRUE(eventually([&] { return engine.held == 2; }));
  loop.cancel(victim);
  const auto outputs = collect(*victim);
  ASSERT_FALSE(outputs.empty());
  EXPECT_EQ(outputs.back().finish, FinishReason::kCancelled);
  EXPECT_FALSE(victim->timed_out());
  EXPECT_EQ(collect(*other).size(), 60u);
  loop.cancel(victim);  // again, and after the end: nothing happens
  EXPECT_TRUE(eventually([&] { return loop.outstanding() == 0; }));
}

TEST(EngineLoop, a_request_past_its_time_is_ended_and_says_so) {
  FakeEngine engine;
  engine.step_us = 1000;
  Counting counting;
  EngineLoop loop(engine, {.request_seconds = 0.05}, &counting);
  wait_ready(loop);
  auto ticket = submit_one(loop, request_of(1000000));
  const auto outputs = collect(*ticket);
  ASSERT_FALSE(outputs.empty());
  EXPECT_EQ(outputs.back().finish, FinishReason::kCancelled);
  EXPECT_TRUE(ticket->timed_out());
  EXPECT_EQ(counting.timed_out, 1);
  EXPECT_TRUE(eventually([&] { return engine.held == 0; }));
}

TEST(EngineLoop, not_ready_before_the_probe_passes_and_again_after_a_fault) {
  FakeEngine engine;
  std::atomic<int> probes{0};
  std::atomic<bool> good{false};
  EngineLoop loop(engine, {.recover_seconds = 0.02, .probe = [&](StepEngine&) {
                             ++probes;
                             return good ? ok_status() : numerical_error("no token came");
                           }});
  ASSERT_TRUE(eventually([&] { return loop.state() == LoopState::kFailed; }));
  EXPECT_EQ(loop.state_message(), "no token came");
  std::vector<Request> one;
  one.push_back(request_of(1));
  const auto refused = loop.submit(std::move(one));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kDevice);
  good = true;
  wait_ready(loop);

  engine.step_us = 1000;
  auto ticket = submit_one(loop, request_of(1000000));
  ASSERT_TRUE(ticket->wait_accepted(milliseconds(1000))->ok());
  const int before = probes;
  engine.fault = true;
  const auto outputs = collect(*ticket);
  ASSERT_FALSE(outputs.empty());
  EXPECT_EQ(outputs.back().finish, FinishReason::kError);
  EXPECT_NE(outputs.back().error.message().find("fell off"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return probes > before; }));
  wait_ready(loop);
  EXPECT_EQ(collect(*submit_one(loop, request_of(2))).size(), 2u);
}

TEST(EngineLoop, drain_lets_requests_end_and_takes_no_new_ones) {
  FakeEngine engine;
  engine.step_us = 1000;
  EngineLoop loop(engine, {});
  wait_ready(loop);
  auto ticket = submit_one(loop, request_of(50));
  loop.begin_drain();
  std::vector<Request> one;
  one.push_back(request_of(1));
  EXPECT_EQ(loop.submit(std::move(one)).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(loop.state(), LoopState::kDraining);
  loop.stop(10);
  const auto outputs = collect(*ticket);
  ASSERT_EQ(outputs.size(), 50u);
  EXPECT_EQ(outputs.back().finish, FinishReason::kLength);
  EXPECT_EQ(loop.state(), LoopState::kStopped);
}

TEST(EngineLoop, stop_cancels_what_outlives_the_grace) {
  FakeEngine engine;
  engine.step_us = 1000;
  EngineLoop loop(engine, {});
  wait_ready(loop);
  auto ticket = submit_one(loop, request_of(1000000));
  ASSERT_TRUE(ticket->wait_accepted(milliseconds(1000))->ok());
  loop.stop(0.02);
  const auto outputs = collect(*ticket);
  ASSERT_FALSE(outputs.empty());
  EXPECT_EQ(outputs.back().finish, FinishReason::kCancelled);
}

TEST(EngineLoop, a_group_is_taken_together) {
  FakeEngine engine;
  EngineLoop loop(engine, {});
  wait_ready(loop);
  std::vector<Request> three;
  for (int i = 1; i <= 3; ++i) three.push_back(request_of(i * 5));
  const auto tickets = loop.submit(std::move(three));
  ASSERT_TRUE(tickets.ok());
  std::vector<int> counts(3);
  int ended = 0;
  for (int i = 0; i < 1000 && ended < 3; ++i) {
    for (const auto& arrival : Ticket::take(*tickets, milliseconds(20))) {
      ++counts[arrival.index];
      ended += arrival.output.finish != FinishReason::kNone;
    }
  }
  EXPECT_EQ(counts, (std::vector<int>{5, 10, 15}));
}

TEST(EngineLoop, many_threads_submit_and_cancel_at_random) {
  FakeEngine engine;
  engine.max_running = 3;
  EngineLoop loop(engine, {.max_outstanding = 1000});
  wait_ready(loop);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const int64_t wanted = 1 + (t * 31 + i * 7) % 40;
        auto ticket = submit_one(loop, request_of(wanted));
        const bool cancelled_here = (t + i) % 3 == 0;
        if (cancelled_here) loop.cancel(ticket);
        const auto outputs = collect(*ticket);
        if (outputs.empty() || outputs.back().finish == FinishReason::kNone) ++wrong;
        if (!cancelled_here && static_cast<int64_t>(outputs.size()) != wanted) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(eventually([&] { return loop.outstanding() == 0; }));
}

}  // namespace
}  // namespace dsv4
