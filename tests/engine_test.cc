// Behaviour of the engine on the shipped tiny model; numbers are verify's business. --backend=NAME chooses the backend (backend_flag.h).
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "backend_flag.h"
#include "backends/registry.h"
#include "text/prompt_encoder.h"

namespace dsv4 {
namespace {

constexpr const char* kTiny = "models/dsv4-tiny";

std::unique_ptr<Device> device() {
  auto device = make_device({.backend = tested_backend(), .num_threads = 2});
  EXPECT_TRUE(device.ok()) << device.status().message();
  return std::move(*device);
}

std::unique_ptr<Engine> make(EngineOptions options = {}) {
  auto checkpoint = Checkpoint::open(kTiny, {});
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  if (options.max_context_tokens == 0) options.max_context_tokens = 512;
  auto engine = Engine::create(std::move(*checkpoint), device(), options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

std::vector<int32_t> chat_prompt(const Engine& engine, const std::string& message) {
  ChatMessage user;
  user.content = message;
  const std::string text = PromptEncoder::load(kTiny)->render({user}, {}).value();
  return engine.tokenizer()->encode(text).value();
}

Request ask(const Engine& engine, const std::string& message, int64_t max_new_tokens = 40) {
  Request r;
  r.prompt = chat_prompt(engine, message);
  r.max_new_tokens = max_new_tokens;
  return r;
}

TEST(Engine, answers_a_chat_and_ends_with_eos) {
  auto engine = make({.prefix_states = 0});
  const Generation g = generate(*engine, ask(*engine, "你好，请介绍一下你自己。")).value();
  EXPECT_EQ(g.finish, FinishReason::kEos);
  EXPECT_EQ(g.tokens.back(), engine->config().eos_token_id);
  EXPECT_EQ(g.text, "你好！我是一个很小的语言模型，用来检验推理引擎是否正确。我会做加法、复述文字、回答各国首都，也能讲一个小故事。");
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(engine->stats().ratio4_blocks_free, engine->stats().ratio4_blocks);
}

TEST(Engine, company_order_and_chunks_change_nothing) {
  const std::vector<std::string> messages = {"What is 12 + 30?", "你好，请介绍一下你自己。", "What is the capital of France?", "Tell me a story."};
  std::vector<std::vector<int32_t>> alone;
  {
    auto engine = make({.prefill_chunk = 64});
    for (const auto& m : messages) alone.push_back(generate(*engine, ask(*engine, m, 24)).value().tokens);
  }
  auto engine = make({.max_seqs = 3, .prefill_chunk = 3});
  std::vector<std::vector<int32_t>> together(messages.size());
  for (const size_t i : {2, 0, 3, 1}) {
    ASSERT_TRUE(engine
                    ->submit(ask(*engine, messages[i], 24),
                             [&together, i](const TokenOutput& o) {
                               if (o.token >= 0) together[i].push_back(o.token);
                             })
                    .ok());
  }
  while (!engine->idle()) ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(together, alone);
}

TEST(Engine, preempted_sequences_come_to_the_same_tokens) {
  // Room for 300 tokens of compressed rows: with one block of 64 rows a slot to spare, three sequences of over 256 tokens need more.
  const EngineOptions roomy{.max_context_tokens = 512, .max_seqs = 3, .prefix_states = 0},
      tight{.max_context_tokens = 512, .max_seqs = 3, .cache_tokens = 256, .prefix_states = 0};
  std::vector<std::vector<int32_t>> results[2];
  for (const int which : {0, 1}) {
    auto engine = make(which == 0 ? roomy : tight);
    results[which].resize(3);
    for (size_t i = 0; i < 3; ++i) {
      Request r;
      for (int32_t t = 0; t < 240; ++t) r.prompt.push_back(300 + (t * 7 + static_cast<int32_t>(i) * 31) % 900);
      r.max_new_tokens = 60;
      r.ignore_eos = true;
      ASSERT_TRUE(engine
                      ->submit(r,
                               [&, i](const TokenOutput& o) {
                                 if (o.token >= 0) results[which][i].push_back(o.token);
                                 EXPECT_NE(o.finish, FinishReason::kError) << o.error.message();
                               })
                      .ok());
    }
    while (!engine->idle()) ASSERT_TRUE(engine->step().ok());
    EXPECT_EQ(engine->stats().preemptions > 0, which == 1);
    EXPECT_EQ(engine->stats().ratio4_blocks_free, engine->stats().ratio4_blocks);
  }
  EXPECT_EQ(results[0], results[1]);
}

// Prompts that share beginnings of awkward lengths; with saved states the answers and their logprobs are the same bits as without.
TEST(Engine, warm_equals_cold_bit_for_bit) {
  std::vector<int32_t> base;
  for (int32_t t = 0; t < 150; ++t) base.push_back(300 + (t * 37) % 900);
  std::vector<Request> requests;
  for (const size_t shared : {150, 150, 149, 131, 130, 129, 65, 7, 3}) {
    Request r;
    r.prompt.assign(base.begin(), base.begin() + static_cast<int64_t>(shared));
    for (int32_t t = 0; t < 5; ++t) r.prompt.push_back(1300 + static_cast<int32_t>(shared) + t);
    r.max_new_tokens = 4;
    r.ignore_eos = true;
    r.num_logprobs = 2;
    requests.push_back(r);
  }
  requests.push_back(requests[3]);  // exactly the same prompt again
  const auto run_all = [&](Engine& engine) {
    std::vector<std::vector<float>> seen(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto sink = [&seen, i](const TokenOutput& o) {
        seen[i].push_back(static_cast<float>(o.token));
        for (const TokenLogprob& t : o.top_logprobs) seen[i].push_back(t.logprob);
        EXPECT_NE(o.finish, FinishReason::kError);
      };
      EXPECT_TRUE(engine.submit(requests[i], sink).ok());
      if (i % 2 == 0) {
        while (!engine.idle()) EXPECT_TRUE(engine.step().ok());  // others share the step with their successor
      }
    }
    while (!engine.idle()) EXPECT_TRUE(engine.step().ok());
    return seen;
  };
  auto cold_engine = make({.max_seqs = 2, .prefill_chunk = 64, .prefix_states = 0});
  const auto cold = run_all(*cold_engine);
  EXPECT_EQ(cold_engine->stats().cached_tokens, 0);
  // Few states (they are forgotten in between), and blocks so scarce that states give way to sequences.
  for (const EngineOptions& options :
       {EngineOptions{.max_seqs = 2, .prefill_chunk = 64, .prefix_states = 16}, EngineOptions{.max_seqs = 2, .prefill_chunk = 32, .prefix_states = 2},
        EngineOptions{.max_seqs = 2, .cache_tokens = 64, .prefill_chunk = 64, .prefix_states = 4}}) {
    auto engine = make(options);
    EXPECT_EQ(run_all(*engine), cold);
    EXPECT_GT(engine->stats().cached_tokens, 0);
  }
}

// Two prompts part after 100 tokens, which is no multiple of anything: the second leaves a state there, the third starts from it.
TEST(Engine, where_prompts_part_a_state_is_saved) {
  auto engine = make({.prefill_chunk = 64});
  std::vector<Request> requests(3);
  for (int32_t i = 0; i < 3; ++i) {
    Request& r = requests[static_cast<size_t>(i)];
    for (int32_t t = 0; t < 100; ++t) r.prompt.push_back(300 + (t * 37) % 900);
    for (int32_t t = 0; t < 9; ++t) r.prompt.push_back(1300 + 20 * i + t);
    r.max_new_tokens = 2;
    r.ignore_eos = true;
  }
  std::vector<int64_t> cached;
  for (const Request& r : requests) cached.push_back(generate(*engine, r).value().outputs.back().num_cached_tokens);
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 64, 100}));
}

class EngineOnDisk : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = (std::filesystem::temp_directory_path() / ("dsv4-engine-test-" + std::to_string(::getpid()))).string();
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  EngineOptions options(int64_t bytes = int64_t{1} << 30) const {
    return {.prefill_chunk = 64, .prefix_states = 4, .cache_directory = directory_, .cache_bytes = bytes};
  }

  // A prompt of `length` tokens and what came of it: tokens and every log probability asked for.
  static Request request(size_t length) {
    Request r;
    for (size_t t = 0; t < length; ++t) r.prompt.push_back(300 + static_cast<int32_t>(t * 37 % 900));
    r.max_new_tokens = 6;
    r.ignore_eos = true;
    r.num_logprobs = 5;
    return r;
  }
  static std::vector<float> result(const Generation& g) {
    std::vector<float> out;
    for (const TokenOutput& o : g.outputs) {
      out.push_back(static_cast<float>(o.token));
      for (const TokenLogprob& t : o.top_logprobs) out.push_back(t.logprob);
    }
    return out;
  }

  std::string directory_;
};

// Lengths on both sides of the blocks, windows and compression ratios; the state is the one before the last token.
TEST_F(EngineOnDisk, a_later_engine_goes_on_bit_for_bit) {
  const std::vector<size_t> lengths = {40, 65, 129, 130, 193, 258, 300, 400};
  std::vector<std::vector<float>> cold;
  {
    auto engine = make({.prefill_chunk = 64, .prefix_states = 0});
    for (const size_t n : lengths) cold.push_back(result(generate(*engine, request(n)).value()));
  }
  for (const size_t n : {size_t{400}, size_t{129}}) {  // two processes leave states: at ends of chunks, and before the last token
    auto engine = make(options());
    EXPECT_TRUE(generate(*engine, request(n)).ok());
  }
  {
    auto engine = make(options());
    EXPECT_GT(engine->stats().disk_states, 3);
    for (size_t i = lengths.size(); i-- > 0;) {
      const Generation g = generate(*engine, request(lengths[i])).value();
      EXPECT_EQ(result(g), cold[i]) << lengths[i];
      if (lengths[i] == 400) EXPECT_EQ(g.outputs.back().num_cached_tokens, 399);
      if (lengths[i] == 300) EXPECT_EQ(g.outputs.back().num_cached_tokens, 256);
    }
    EXPECT_GT(engine->stats().disk_hits, 1);
  }
  // By now every length has left the state before its last token.
  for (size_t i = 0; i < lengths.size(); ++i) {
    auto engine = make(options());
    const Generation g = generate(*engine, request(lengths[i])).value();
    EXPECT_EQ(result(g), cold[i]) << lengths[i];
    for (const TokenOutput& o : g.outputs) EXPECT_EQ(o.num_cached_tokens, static_cast<int64_t>(lengths[i]) - 1);
    EXPECT_EQ(engine->stats().disk_hits, 1);
  }
}

TEST_F(EngineOnDisk, damaged_states_are_computed_again) {
  std::vector<float> cold;
  {
    auto engine = make(options());
    cold = result(generate(*engine, request(200)).value());
  }
  for (const auto& file : std::filesystem::directory_iterator(directory_)) {  // in the middle of the state
    std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<int64_t>(file.file_size()) / 2);
    stream.put('!');
    stream.seekp(static_cast<int64_t>(file.file_size()) / 2 + 1);
    stream.put('?');
  }
  auto engine = make(options());
  const Generation g = generate(*engine, request(200)).value();
  EXPECT_EQ(result(g), cold);
  EXPECT_EQ(g.outputs.back().num_cached_tokens, 0);
  EXPECT_GT(engine->stats().disk_damaged, 0);
  EXPECT_EQ(engine->stats().disk_hits, 0);
}

// States depend on how rows are stored and rounded: an engine with other settings takes none of them.
TEST_F(EngineOnDisk, other_settings_do_not_share) {
  { EXPECT_TRUE(generate(*make(options()), request(200)).ok()); }
  EngineOptions exact = options();
  exact.arithmetic = Arithmetic::kExact;
  exact.cache_format = RowFormat::kF32;
  auto engine = make(exact);
  EXPECT_EQ(engine->stats().disk_states, 0);
  EXPECT_EQ(generate(*engine, request(200)).value().outputs.back().num_cached_tokens, 0);
}

TEST_F(EngineOnDisk, the_limit_holds) {
  const int64_t limit = 3 << 20;
  {
    auto engine = make(options(limit));
    for (const size_t n : {100, 200, 300, 400, 150, 250}) EXPECT_TRUE(generate(*engine, request(n)).ok());
  }
  auto engine = make(options(limit));
  EXPECT_GT(engine->stats().disk_states, 0);
  int64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory_)) bytes += static_cast<int64_t>(file.file_size());
  EXPECT_LE(bytes, limit);
  EXPECT_EQ(bytes, engine->stats().disk_bytes);
}

TEST(Engine, stop_strings_length_and_context_end_an_answer) {
  auto engine = make({.max_context_tokens = 64});
  Request r = ask(*engine, "What is the capital of France?");
  const std::string whole = generate(*engine, r).value().text;
  ASSERT_NE(whole.find("Paris"), std::string::npos) << whole;
  r.stop = {"Paris"};
  const Generation stopped = generate(*engine, r).value();
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.text, whole.substr(0, whole.find("Paris")));
  r.stop.clear();
  r.max_new_tokens = 2;
  EXPECT_EQ(generate(*engine, r)->finish, FinishReason::kLength);
  r.max_new_tokens = 1000;
  r.ignore_eos = true;
  const Generation full = generate(*engine, r).value();
  EXPECT_EQ(full.finish, FinishReason::kContext);
  EXPECT_EQ(r.prompt.size() + full.tokens.size(), 64u);
}

TEST(Engine, stop_strings_may_wait_for_a_token) {
  auto engine = make();
  Request r = ask(*engine, "What is the capital of France?");
  const Generation whole = generate(*engine, r).value();
  ASSERT_EQ(whole.text, "The capital of France is Paris.");
  r.stop = {"a"};
  EXPECT_EQ(generate(*engine, r)->text, "The c");
  std::string text;  // after the third token, "a" ends it
  for (int i = 0; i < 3; ++i) text += engine->tokenizer()->token_bytes(whole.tokens[static_cast<size_t>(i)]);
  ASSERT_NE(text.find('a'), std::string::npos);
  r.stop_after_token = whole.tokens[2];
  const Generation g = generate(*engine, r).value();
  EXPECT_EQ(g.text, whole.text.substr(0, whole.text.find('a', text.size())));
  EXPECT_EQ(g.finish, FinishReason::kStop);
  EXPECT_EQ(g.outputs.back().stop_text, "a");
  r.stop_after_token = 0;  // never comes
  EXPECT_EQ(generate(*engine, r)->text, whole.text);
}

TEST(Engine, sampling_with_a_seed_repeats_in_any_company) {
  auto engine = make();
  Request r = ask(*engine, "Tell me a story.", 30);
  r.sampling.temperature = 1.5f;
  r.sampling.seed = 7;
  const auto alone = generate(*engine, r)->tokens;
  std::vector<int32_t> together;
  ASSERT_TRUE(engine->submit(ask(*engine, "What is 1 + 1?"), {}).ok());
  ASSERT_TRUE(engine->submit(r, [&](const TokenOutput& o) { together.push_back(o.token); }).ok());
  while (!engine->idle()) ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(together, alone);
  r.sampling.seed = 8;
  EXPECT_NE(generate(*engine, r)->tokens, alone);
}

// Draws on the device and, for the logprobs' sake, on the host: the same tokens; one of each in every step.
TEST(Engine, draws_on_the_device_are_the_hosts) {
  auto engine = make();
  for (uint64_t seed = 1; seed <= 7; ++seed) {
    Request on_device = ask(*engine, "Tell me a story.", 24);
    on_device.ignore_eos = true;
    on_device.sampling = {.temperature = seed % 2 == 0 ? 1.0f : 3.0f};
    if (seed % 3 == 1) on_device.sampling.top_p = 0.8f;
    if (seed % 3 == 2) on_device.sampling.top_k = 5;
    if (seed % 4 == 3) on_device.sampling.min_p = 0.02f;
    on_device.sampling.seed = seed;
    Request on_host = on_device;
    on_host.num_logprobs = 0;
    std::vector<int32_t> device_tokens, host_tokens;
    ASSERT_TRUE(engine->submit(on_device, [&](const TokenOutput& o) { device_tokens.push_back(o.token); }).ok());
    ASSERT_TRUE(engine->submit(on_host, [&](const TokenOutput& o) { host_tokens.push_back(o.token); }).ok());
    while (!engine->idle()) ASSERT_TRUE(engine->step().ok());
    EXPECT_EQ(device_tokens, host_tokens) << "seed " << seed;
    EXPECT_EQ(device_tokens.size(), 24u);
  }
}

TEST(Engine, cancel_frees_its_place_and_disturbs_nobody) {
  auto engine = make({.max_seqs = 2, .prefix_states = 0});
  const auto alone = generate(*engine, ask(*engine, "What is 12 + 30?"))->tokens;
  std::vector<int32_t> survivor;
  FinishReason cancelled = FinishReason::kNone;
  const uint64_t victim = engine->submit(ask(*engine, "Tell me a story."), [&](const TokenOutput& o) { cancelled = o.finish; }).value();
  // The survivor's sink cancels the other in the middle of a step.
  ASSERT_TRUE(engine
                  ->submit(ask(*engine, "What is 12 + 30?"),
                           [&](const TokenOutput& o) {
                             survivor.push_back(o.token);
                             if (survivor.size() == 2) engine->cancel(victim);
                           })
                  .ok());
  while (!engine->idle()) ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(cancelled, FinishReason::kCancelled);
  EXPECT_EQ(survivor, alone);
  engine->cancel(victim);  // long gone
  EXPECT_EQ(engine->stats().ratio4_blocks_free, engine->stats().ratio4_blocks);
}

TEST(Engine, logprobs_and_the_logits_hook_agree_with_greedy) {
  auto engine = make();
  Request r = ask(*engine, "What is 1 + 1?", 6);
  r.num_logprobs = 3;
  const Generation g = generate(*engine, r).value();
  for (const TokenOutput& o : g.outputs) {
    ASSERT_EQ(o.top_logprobs.size(), 3u);
    EXPECT_EQ(o.top_logprobs[0].token, o.token);
    EXPECT_LE(o.logprob->logprob, 0);
  }
  int64_t rows = 0;
  r.logits_hook = [&](int64_t position, std::span<const float> logits) {
    EXPECT_EQ(position, rows++);
    EXPECT_EQ(logits.size(), 2560u);
  };
  EXPECT_EQ(generate(*engine, r)->tokens, g.tokens);
  EXPECT_EQ(rows, static_cast<int64_t>(r.prompt.size() + g.tokens.size()) - 1);
}

TEST(Engine, bad_requests_are_refused_whole) {
  auto engine = make({.max_context_tokens = 16});
  Request r;
  EXPECT_EQ(engine->submit(r, {}).status().message(), "request: the prompt has no tokens");
  r.prompt = {0, 99999};
  EXPECT_EQ(engine->submit(r, {}).status().message(), "request: token 99999 is not below the vocabulary's 2560");
  r.prompt.assign(16, 5);
  EXPECT_EQ(engine->submit(r, {}).status().message(), "request: the prompt has 16 tokens, the context holds 16 with the answer");
  r.prompt = {0};
  r.sampling.top_p = 2;
  EXPECT_FALSE(engine->submit(r, {}).ok());
  EXPECT_TRUE(engine->idle());
}

TEST(Engine, exact_arithmetic_refuses_a_rounding_cache) {
  auto engine = Engine::create(std::move(Checkpoint::open(kTiny, {}).value()), device(), {.arithmetic = Arithmetic::kExact});
  EXPECT_EQ(engine.status().message(), "engine: exact arithmetic needs the f32 cache, not fp8_ds_mla");
}

// A synthetic model answers the same, to the last bit, whoever made its weights.
TEST(Engine, weights_made_on_the_device_are_the_hosts) {
  if (!device()->generates()) GTEST_SKIP() << "backend " << tested_backend() << " takes synthetic weights from the host";
  std::vector<std::vector<float>> seen(2);
  for (const bool on_device : {false, true}) {
    CheckpointOptions opening;
    opening.generate_on_device = on_device;
    auto checkpoint = Checkpoint::open("synthetic:tiny", opening);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->find("embed.weight")->data == nullptr, on_device);
    auto engine = Engine::create(std::move(*checkpoint), device(), {.max_context_tokens = 256, .max_seqs = 1});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    Request r;
    for (int32_t t = 0; t < 140; ++t) r.prompt.push_back(3 + (t * 37) % 2000);
    r.max_new_tokens = 8;
    r.ignore_eos = true;
    r.num_logprobs = 5;
    const auto g = generate(**engine, r);
    ASSERT_TRUE(g.ok()) << g.status().message();
    for (const TokenOutput& o : g->outputs) {
      for (const TokenLogprob& t : o.top_logprobs) seen[on_device].insert(seen[on_device].end(), {static_cast<float>(t.token), t.logprob});
    }
  }
  EXPECT_EQ(seen[0].size(), 80u);
  EXPECT_EQ(seen[0], seen[1]);
}

// A row from which nothing can be sampled must end its request alone.
TEST(Engine, an_impossible_row_ends_its_request_alone) {
  auto engine = make();
  Request r = ask(*engine, "What is 1 + 1?", 4);
  r.sampling.temperature = 1;
  struct Nothing : TokenConstraint {
    Status mask(std::span<float> logits) override {
      for (float& l : logits) l = -INFINITY;
      return ok_status();
    }
    Status accept(int32_t) override { return ok_status(); }
  };
  r.constraint = std::make_shared<Nothing>();
  FinishReason bad = FinishReason::kNone;
  std::vector<int32_t> good;
  const auto alone = generate(*engine, ask(*engine, "What is 12 + 30?"))->tokens;
  ASSERT_TRUE(engine->submit(r, [&](const TokenOutput& o) { bad = o.finish; }).ok());
  ASSERT_TRUE(engine->submit(ask(*engine, "What is 12 + 30?"), [&](const TokenOutput& o) { good.push_back(o.token); }).ok());
  while (!engine->idle()) ASSERT_TRUE(engine->step().ok());
  EXPECT_EQ(bad, FinishReason::kError);
  EXPECT_EQ(good, alone);
}

}  // namespace
}  // namespace dsv4
