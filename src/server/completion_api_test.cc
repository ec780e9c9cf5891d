#include "server/api_fixture.h"

namespace dsv4 {
namespace {

class CompletionApi : public ApiTest {
 protected:
  static std::string body(const std::string& more = "") { return R"({"model": "tiny", "prompt": "One two")" + more + "}"; }
};

TEST_F(CompletionApi, answers_whole) {
  answer_with(" three four");
  const Json out = post("/v1/completions", body());
  EXPECT_EQ(out["object"], "text_completion");
  EXPECT_EQ(out["choices"][0]["text"], " three four");
  EXPECT_EQ(out["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(last_request_.prompt[0], 0);  // begins the text
  EXPECT_EQ(tokenizer_->decode(last_request_.prompt, {.skip_special = true}).value(), "One two");
  EXPECT_EQ(last_request_.max_new_tokens, 16);
  post("/v1/completions", body(R"(, "add_special_tokens": false, "max_tokens": 7, "stop": "x")"));
  EXPECT_NE(last_request_.prompt[0], 0);
  EXPECT_EQ(last_request_.max_new_tokens, 7);
  EXPECT_EQ(last_request_.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(last_request_.stop_after_token, -1);
}

TEST_F(CompletionApi, prompts_of_every_form) {
  answer_with("!");
  const Json two = post("/v1/completions", R"({"prompt": ["a", "b"], "n": 2})");
  ASSERT_EQ(two["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(two["choices"][i]["index"], i);
  EXPECT_EQ(two["usage"]["prompt_tokens"], 4);  // each with its begin token
  post("/v1/completions", R"({"prompt": [5, 6, 7]})");
  EXPECT_EQ(last_request_.prompt, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(post("/v1/completions", R"({"prompt": [[5, 6], [7]]})")["choices"].size(), 2u);
}

TEST_F(CompletionApi, echo_and_stream) {
  answer_with(" three");
  EXPECT_EQ(post("/v1/completions", body(R"(, "echo": true)"))["choices"][0]["text"], "One two three");
  std::string text;
  const auto all = events(stream("/v1/completions", body(R"(, "stream": true, "echo": true, "stream_options": {"include_usage": true})")));
  EXPECT_EQ(all.back(), "[DONE]");
  EXPECT_GT(all[all.size() - 2]["usage"]["completion_tokens"], 0);
  for (const Json& chunk : all) {
    if (chunk.is_object() && !chunk["choices"].empty()) text += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "One two three");
}

// Not by the thread of each connection, woken for each token.
TEST_F(CompletionApi, the_loops_courier_writes_streams) {
  answer_with(" one two three four five six seven eight nine ten");
  engine_.step_us = 1000;
  stream("/v1/completions", body(R"(, "stream": true, "max_tokens": 100)"));
  writers_.erase(std::this_thread::get_id());
  EXPECT_EQ(writers_.size(), 1u);
}

TEST_F(CompletionApi, log_probabilities) {
  answer_with("ab");
  const Json l = post("/v1/completions", body(R"(, "logprobs": 2)"))["choices"][0]["logprobs"];
  const size_t n = tokenizer_->encode("ab")->size();
  EXPECT_EQ(l["tokens"].size(), n);
  EXPECT_EQ(l["token_logprobs"][0], -0.25);
  EXPECT_EQ(l["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(l["text_offset"][0], 0);
  const Json chat =
      post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 3})")["choices"][0]["logprobs"];
  ASSERT_EQ(chat["content"].size(), n);
  EXPECT_EQ(chat["content"][0]["logprob"], -0.25);
  EXPECT_EQ(chat["content"][0]["top_logprobs"].size(), 3u);
  std::string joined;
  for (const Json& token : chat["content"]) {
    for (const Json& byte : token["bytes"]) joined += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(joined, "ab");
  // In a stream each token's numbers come exactly once.
  size_t seen = 0;
  for (const Json& chunk : events(stream("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "stream": true})"))) {
    if (chunk.is_object() && !chunk["choices"][0]["logprobs"].is_null()) seen += chunk["choices"][0]["logprobs"]["content"].size();
  }
  EXPECT_EQ(seen, n);
}

TEST_F(CompletionApi, prompt_log_probabilities_come_from_the_hook) {
  engine_.script = [](const Request& r) {
    std::vector<float> logits(2560, 0.0f);
    for (size_t i = 0; i < r.prompt.size(); ++i) r.logits_hook(static_cast<int64_t>(i), logits);
    return std::vector<FakeEngine::Piece>{{9, "!"}};
  };
  const Json p = post("/v1/completions", R"({"prompt": [5, 6, 7], "prompt_logprobs": 1})")["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(p.size(), 3u);
  EXPECT_TRUE(p[0].is_null());
  EXPECT_NEAR(p[1]["6"]["logprob"].get<double>(), -std::log(2560.0), 1e-4);
  EXPECT_EQ(p[2]["7"]["rank"], 1);  // none is better
  const Json l = post("/v1/completions", R"({"prompt": [5, 6, 7], "echo": true, "logprobs": 0, "max_tokens": 1})")["choices"][0]["logprobs"];
  ASSERT_EQ(l["tokens"].size(), 3u + 1u);
  EXPECT_TRUE(l["token_logprobs"][0].is_null());
}

TEST_F(CompletionApi, faults_are_named) {
  const std::pair<std::string, const char*> cases[] = {
      {"{}", "prompt is missing"},
      {R"({"prompt": 5})", "prompt must be a string"},
      {R"({"prompt": []})", "prompt is empty"},
      {R"({"prompt": [2560]})", "prompt holds 2560, which is not a token id below 2560"},
      {R"({"prompt": [-1]})", "prompt holds -1"},
      {R"({"prompt": [1, "a"]})", "prompt holds a string"},
      {R"({"prompt": [[]]})", "prompt has no tokens"},
      {R"({"prompt": "", "add_special_tokens": false})", "prompt has no tokens"},
      {body(R"(, "suffix": "x")"), "suffix is not possible"},
      {body(R"(, "best_of": 3)"), "best_of"},
      {body(R"(, "max_tokens": 0)"), "max_tokens is 0"},
      {body(R"(, "max_tokens": 1000)"), "the context holds 600 tokens"},
      {body(R"(, "logprobs": 50)"), "logprobs is 50"},
      {body(R"(, "messages": [])"), "unknown field \"messages\""},
      {body(R"(, "stream": true, "prompt_logprobs": 1)"), "prompt_logprobs is not for streams"},
  };
  for (const auto& [request, message] : cases)
    EXPECT_NE(refusal("/v1/completions", request).find(message), std::string::npos) << request << "\n  -> " << refusal("/v1/completions", request);
}

TEST_F(CompletionApi, tokens_and_back) {
  const Json plain = post("/v1/tokenize", R"({"prompt": "Hello 你好"})");
  EXPECT_EQ(plain["tokens"][0], 0);
  EXPECT_EQ(plain["count"], plain["tokens"].size());
  EXPECT_EQ(plain["max_model_len"], kContext);
  const Json bare = post("/v1/tokenize", R"({"content": "Hello 你好", "add_special_tokens": false})");
  EXPECT_EQ(bare["count"].get<int>() + 1, plain["count"].get<int>());
  EXPECT_EQ(post("/v1/detokenize", R"({"tokens": )" + bare["tokens"].dump() + "}")["prompt"], "Hello 你好");
  const Json chat = post("/v1/tokenize", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(post("/v1/detokenize", R"({"tokens": )" + chat["tokens"].dump() + "}")["prompt"], "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>");
  refusal("/v1/tokenize", R"({"text": "a", "prompt": "b"})");
  refusal("/v1/tokenize", "{}");
  refusal("/v1/detokenize", R"({"tokens": [99999]})");
  refusal("/v1/detokenize", R"({"tokens": "x"})");
}

TEST_F(CompletionApi, models_health_metrics_and_page) {
  const Json models = json(call("/v1/models", "", "GET"));
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(json(call("/v1/models/alias", "", "GET"))["id"], "alias");
  EXPECT_EQ(json(call("/health", "", "GET"))["status"], "ok");
  answer_with("abc");
  post("/v1/completions", body());
  const std::string text = call("/metrics", "", "GET").body;
  for (const char* line : {"dsv4_ready 1", "dsv4_requests_total{reason=\"eos\"} 1", "dsv4_time_to_first_token_seconds_count 1",
                           "dsv4_inter_token_seconds_bucket", "dsv4_cache_blocks{pool=\"ratio4\",state=\"free\"}"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(json(call("/live", "", "GET"))["requests"]["ended"], 1);
  const HttpReply page = call("/", "", "GET");
  EXPECT_NE(page.body.find("<title>dsv4</title>"), std::string::npos);
  for (const char* file : {"/app.js", "/chat.js", "/style.css"}) EXPECT_FALSE(call(file, "", "GET").body.empty());
}

}  // namespace
}  // namespace dsv4
