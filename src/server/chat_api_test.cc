#include "server/api_fixture.h"

namespace dsv4 {
namespace {

constexpr const char* kChat = "/v1/chat/completions";

std::string chat(const std::string& more = "") { return R"({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}])" + more + "}"; }

const std::string kWeatherTool =
    R"({"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}})";
const std::string kCall =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

class ChatApi : public ApiTest {};

TEST_F(ChatApi, answers_whole) {
  answer_with("Hello there, 你好!");
  const Json out = post(kChat, chat());
  EXPECT_EQ(out["object"], "chat.completion");
  EXPECT_EQ(out["id"].get<std::string>().rfind("chatcmpl-", 0), 0u);
  EXPECT_EQ(out["model"], "tiny");
  ASSERT_EQ(out["choices"].size(), 1u);
  const Json& choice = out["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "Hello there, 你好!");
  EXPECT_FALSE(choice["message"].contains("reasoning_content"));
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  const int64_t prompt = static_cast<int64_t>(last_request_.prompt.size());
  EXPECT_EQ(out["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(out["usage"]["total_tokens"], prompt + out["usage"]["completion_tokens"].get<int64_t>());
  EXPECT_EQ(last_request_.max_new_tokens, kContext - prompt);
  EXPECT_EQ(tokenizer_->decode(last_request_.prompt).value(), "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>");
}

TEST_F(ChatApi, streams_as_clients_read_it) {
  answer_with("Hello there, 你好!");
  const auto all = events(stream(kChat, chat(R"(, "stream": true, "stream_options": {"include_usage": true})")));
  ASSERT_GE(all.size(), 5u);
  EXPECT_EQ(all.back(), "[DONE]");
  const Json& usage = all[all.size() - 2];
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_GT(usage["usage"]["completion_tokens"], 0);
  const Json& last = all[all.size() - 3];
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(last["choices"][0]["delta"], Json::object());
  std::string content;
  int roles = 0;
  for (size_t i = 0; i + 2 < all.size(); ++i) {
    const Json& chunk = all[i];
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], all[0]["id"]);
    EXPECT_TRUE(chunk["usage"].is_null());
    const Json& delta = chunk["choices"][0]["delta"];
    roles += delta.contains("role");
    if (delta.contains("content")) {
      ASSERT_TRUE(delta["content"].is_string());
      content += delta["content"].get<std::string>();
    }
  }
  EXPECT_EQ(roles, 1);
  EXPECT_EQ(all[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(content, "Hello there, 你好!");
  // Without the option there is no usage anywhere.
  for (const Json& chunk : events(stream(kChat, chat(R"(, "stream": true)")))) EXPECT_FALSE(chunk.is_object() && chunk.contains("usage"));
}

TEST_F(ChatApi, thinking_is_apart) {
  answer_with("Let me see.</think>It is 4.");
  const Json out = post(kChat, chat(R"(, "chat_template_kwargs": {"thinking": true})"));
  EXPECT_EQ(out["choices"][0]["message"]["reasoning_content"], "Let me see.");
  EXPECT_EQ(out["choices"][0]["message"]["content"], "It is 4.");
  EXPECT_EQ(out["usage"]["completion_tokens_details"]["reasoning_tokens"], static_cast<int64_t>(tokenizer_->encode("Let me see.</think>")->size()));
  EXPECT_EQ(last_request_.prompt.back(), tokenizer_->id_of("<think>").value());
  EXPECT_EQ(last_request_.stop_after_token, tokenizer_->id_of("</think>").value());

  std::string reasoning, content;
  for (const Json& chunk : events(stream(kChat, chat(R"(, "enable_thinking": true, "stream": true)")))) {
    if (!chunk.is_object()) continue;
    const Json& delta = chunk["choices"][0]["delta"];
    if (delta.contains("reasoning_content")) reasoning += delta["reasoning_content"].get<std::string>();
    if (delta.contains("content")) content += delta["content"].get<std::string>();
  }
  EXPECT_EQ(reasoning, "Let me see.");
  EXPECT_EQ(content, "It is 4.");
}

TEST_F(ChatApi, ways_to_ask_for_thinking) {
  answer_with("x");
  const int32_t on = tokenizer_->id_of("<think>").value(), off = tokenizer_->id_of("</think>").value();
  const std::pair<const char*, int32_t> cases[] = {
      {"", off},
      {R"(, "thinking": {"type": "enabled"})", on},
      {R"(, "thinking": {"type": "disabled"})", off},
      {R"(, "enable_thinking": false)", off},
      {R"(, "reasoning_effort": "high")", on},
      {R"(, "reasoning_effort": "max")", on},
      {R"(, "reasoning_effort": "medium")", on},
      {R"(, "reasoning_effort": "none")", off},
      {R"(, "reasoning_effort": "high", "enable_thinking": false)", off},
      {R"(, "chat_template_kwargs": {"enable_thinking": true, "reasoning_effort": "max"})", on},
  };
  for (const auto& [fields, last] : cases) {
    post(kChat, chat(fields));
    EXPECT_EQ(last_request_.prompt.back(), last) << fields;
  }
  post(kChat, chat(R"(, "reasoning_effort": "max")"));
  EXPECT_NE(tokenizer_->decode(last_request_.prompt)->find("Effort: max."), std::string::npos);
  EXPECT_NE(refusal(kChat, chat(R"(, "thinking": {"type": "enabled"}, "enable_thinking": false)")).find("contradicts"), std::string::npos);
  EXPECT_NE(refusal(kChat, chat(R"(, "reasoning_effort": "heroic")")).find("low, high, max"), std::string::npos);
  refusal(kChat, chat(R"(, "thinking": {"type": "loud"})"));
  refusal(kChat, chat(R"(, "chat_template_kwargs": {"verbose": true})"));
}

TEST_F(ChatApi, tool_calls) {
  answer_with("Let me look." + kCall);
  const std::string with_tools = chat(R"(, "tools": [)" + kWeatherTool + "]");
  const Json out = post(kChat, with_tools);
  const Json& message = out["choices"][0]["message"];
  EXPECT_EQ(out["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(message["content"], "Let me look.");
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["id"].get<std::string>().rfind("call_", 0), 0u);
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "get_weather");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"city": "Paris", "days": 2})");
  EXPECT_NE(tokenizer_->decode(last_request_.prompt)->find("\"get_weather\""), std::string::npos);

  std::string arguments, content;
  int starts = 0;
  for (const Json& chunk : events(stream(kChat, chat(R"(, "stream": true, "tools": [)" + kWeatherTool + "]")))) {
    if (!chunk.is_object()) continue;
    const Json& choice = chunk["choices"][0];
    if (choice["delta"].contains("content")) content += choice["delta"]["content"].get<std::string>();
    if (choice["delta"].contains("tool_calls")) {
      const Json& call = choice["delta"]["tool_calls"][0];
      EXPECT_EQ(call["index"], 0);
      if (call.contains("id")) {
        ++starts;
        EXPECT_EQ(call["function"]["name"], "get_weather");
        EXPECT_EQ(call["function"]["arguments"], "");
      } else {
        EXPECT_FALSE(call["function"].contains("name"));
        arguments += call["function"]["arguments"].get<std::string>();
      }
    }
    if (!choice["finish_reason"].is_null()) EXPECT_EQ(choice["finish_reason"], "tool_calls");
  }
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(content, "Let me look.");
  EXPECT_EQ(arguments, R"({"city": "Paris", "days": 2})");
}

TEST_F(ChatApi, tool_choice_none_hides_the_tools) {
  answer_with("x");
  post(kChat, chat(R"(, "tool_choice": "none", "tools": [)" + kWeatherTool + "]"));
  EXPECT_EQ(tokenizer_->decode(last_request_.prompt)->find("get_weather"), std::string::npos);
}

TEST_F(ChatApi, one_call_when_parallel_calls_are_off) {
  const std::string two = kCall.substr(0, kCall.find("</｜DSML｜tool_calls>")) + kCall.substr(kCall.find("<｜DSML｜invoke"));
  answer_with(two);
  const std::string tools = R"(, "tools": [)" + kWeatherTool + "]";
  EXPECT_EQ(post(kChat, chat(tools))["choices"][0]["message"]["tool_calls"].size(), 2u);
  const Json one = post(kChat, chat(tools + R"(, "parallel_tool_calls": false)"));
  EXPECT_EQ(one["choices"][0]["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(one["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(ChatApi, a_tool_s_answer_goes_back_in) {
  answer_with("Sunny.");
  const Json out = post(kChat, R"({"messages": [{"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 20"}], "tools": [)" +
                                   kWeatherTool + "]}");
  EXPECT_EQ(out["choices"][0]["message"]["content"], "Sunny.");
  const std::string prompt = tokenizer_->decode(last_request_.prompt).value();
  EXPECT_NE(prompt.find("<tool_result>sunny, 20</tool_result>"), std::string::npos) << prompt;
  EXPECT_NE(prompt.find("parameter name=\"city\" string=\"true\">Paris"), std::string::npos);
}

TEST_F(ChatApi, an_answer_may_be_begun) {
  answer_with(" Paris.");
  post(kChat, R"({"messages": [{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "It is"}]})");
  const std::string prompt = tokenizer_->decode(last_request_.prompt).value();
  EXPECT_EQ(prompt.substr(prompt.size() - 5), "It is");
}

TEST_F(ChatApi, several_choices_with_their_own_seeds) {
  answer_with("abc");
  const Json out = post(kChat, chat(R"(, "n": 3, "seed": 5, "temperature": 0.5)"));
  ASSERT_EQ(out["choices"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out["choices"][i]["index"], i);
    EXPECT_EQ(out["choices"][i]["message"]["content"], "abc");
  }
  EXPECT_GE(*last_request_.sampling.seed, 5u);
  EXPECT_EQ(out["usage"]["prompt_tokens"], static_cast<int64_t>(last_request_.prompt.size()));
  EXPECT_EQ(out["usage"]["completion_tokens"], 3 * static_cast<int64_t>(tokenizer_->encode("abc")->size()));
}

TEST_F(ChatApi, fields_reach_the_engine) {
  answer_with("x");
  post(kChat,
       chat(R"(, "temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.125, "frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.5,
    "logit_bias": {"17": -100, "18": 2.5}, "seed": -1, "stop": ["a", "b"], "max_tokens": 9, "max_completion_tokens": 9, "user": "u", "metadata": {}, "store": true)"));
  const SamplingParams& p = last_request_.sampling;
  EXPECT_EQ(p.temperature, 0.25f);
  EXPECT_EQ(p.top_p, 0.5f);
  EXPECT_EQ(p.top_k, 7);
  EXPECT_EQ(p.min_p, 0.125f);
  EXPECT_EQ(p.frequency_penalty, 0.5f);
  EXPECT_EQ(p.presence_penalty, -0.5f);
  EXPECT_EQ(p.repetition_penalty, 1.5f);
  ASSERT_EQ(p.logit_bias.size(), 2u);
  EXPECT_EQ(p.logit_bias[1], (std::pair<int32_t, float>{18, 2.5f}));
  EXPECT_EQ(*p.seed, ~uint64_t{0});
  EXPECT_EQ(last_request_.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(last_request_.max_new_tokens, 9);
  EXPECT_EQ(last_request_.num_logprobs, -1);
  post(kChat, chat());
  EXPECT_EQ(last_request_.sampling.temperature, 1.0f);
}

TEST_F(ChatApi, faults_are_named) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "body: line 1"},
      {"[1]", "the body must be an object"},
      {"{\"messages\": ", "body: line 1"},
      {"{}", "messages is missing"},
      {R"({"messages": "hi"})", "messages must be an array"},
      {R"({"messages": []})", "messages must not be empty"},
      {R"({"messages": [{"role": "wizard", "content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})",
       "messages[0].content[0] is of type \"image_url\"; this model reads text only"},
      {chat(R"(, "temperature": 3)"), "temperature is 3, it must be between 0 and 2"},
      {chat(R"(, "temperature": "hot")"), "temperature must be a number, it is a string"},
      {chat(R"(, "temperature": 1e999)"), "temperature"},
      {chat(R"(, "top_p": 1.1)"), "top_p"},
      {chat(R"(, "n": 0)"), "n is 0"},
      {chat(R"(, "n": 1.5)"), "n must be an integer, it is 1.5"},
      {chat(R"(, "max_tokens": 0)"), "max_tokens is 0"},
      {chat(R"(, "max_tokens": 5, "max_completion_tokens": 6)"), "max_tokens is 5 and max_completion_tokens is 6"},
      {chat(R"(, "max_tokens": 10000)"), "the context holds 600 tokens, prompt and answer; this request's prompt has 5 tokens and asks for an answer of 10000"},
      {chat(R"(, "stop": [""])"), "stop must not hold an empty string"},
      {chat(R"(, "stop": 5)"), "stop must be a string"},
      {chat(R"(, "logit_bias": {"x": 1})"), "logit_bias names \"x\""},
      {chat(R"(, "logit_bias": {"1": 101})"), "logit_bias of token 1"},
      {chat(R"(, "top_logprobs": 3)"), "top_logprobs needs logprobs"},
      {chat(R"(, "logprobs": true, "top_logprobs": 21)"), "top_logprobs is 21"},
      {chat(R"(, "stream_options": {"include_usage": true})"), "stream_options is only for streams"},
      {chat(R"(, "response_format": {"type": "xml"})"), "response_format.type must be"},
      {chat(R"(, "response_format": {"type": "json_schema"})"), "response_format.json_schema is missing"},
      {chat(R"(, "tools": [{"type": "function"}])"), "tools[0].function is missing"},
      {chat(R"(, "tools": [{"type": "retrieval"}])"), "tools[0].type"},
      {chat(R"(, "tools": [{"type": "function", "function": {"name": ""}}])"), "tools[0].function.name"},
      {chat(R"(, "tools": [)" + kWeatherTool + "," + kWeatherTool + "]"), "names the function \"get_weather\" twice"},
      {chat(R"(, "tool_choice": "required")"), "tools is empty"},
      {chat(R"(, "tool_choice": "sometimes")"), "tool_choice must be"},
      {chat(R"(, "tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [)" + kWeatherTool + "]"), "names the function \"f\""},
      {chat(R"(, "functions": [])"), "functions is the old form"},
      {chat(R"(, "modalities": ["audio"])"), "modalities"},
      {chat(R"(, "no_such_thing": 1)"), "unknown field \"no_such_thing\""},
      {chat(R"(, "stream": 1)"), "stream must be a boolean"},
      {R"({"messages": [{"role": "user", "content": "a"}], "messages": []})", "body"},
  };
  for (const auto& [body, message] : cases) EXPECT_NE(refusal(kChat, body).find(message), std::string::npos) << body << "\n  -> " << refusal(kChat, body);
  const Json error = json(call(kChat, chat(R"(, "temperature": 3)")))["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "temperature");
  EXPECT_NE(refusal(kChat, R"({"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]})", 404).find("does not exist here"), std::string::npos);
  answer_with("x");
  post(kChat, R"({"model": "alias", "messages": [{"role": "user", "content": "x"}], "temperature": null, "tools": null})");
}

TEST_F(ChatApi, a_full_queue_is_429_with_retry_after) {
  start({.max_outstanding = 0});
  const HttpReply reply = call(kChat, chat());
  EXPECT_EQ(reply.status, 429);
  ASSERT_EQ(reply.headers.size(), 1u);
  EXPECT_EQ(reply.headers[0].first, "Retry-After");
  EXPECT_GE(std::stoi(reply.headers[0].second), 1);
  EXPECT_EQ(json(reply)["error"]["type"], "rate_limit_error");
}

TEST_F(ChatApi, an_engine_that_is_not_ready_is_503) {
  start({.recover_seconds = 100, .probe = [](StepEngine&) { return numerical_error("no token"); }});
  EXPECT_EQ(call(kChat, chat()).status, 503);
  const HttpReply health = call("/health", "", "GET");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json(health)["message"], "no token");
}

TEST_F(ChatApi, a_fault_under_way) {
  engine_.step_us = 1000;
  engine_.script = [this](const Request&) {
    engine_.fault = true;
    return std::vector<FakeEngine::Piece>(5);
  };
  EXPECT_NE(refusal(kChat, chat(), 500).find("fell off the bus"), std::string::npos);
  for (int i = 0; i < 500 && loop_->state() != LoopState::kReady; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto all = events(stream(kChat, chat(R"(, "stream": true)")));
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all[all.size() - 2]["error"]["type"], "server_error");
  EXPECT_EQ(all.back(), "[DONE]");
}

TEST_F(ChatApi, a_time_out_is_504) {
  start({.request_seconds = 0.05});
  engine_.step_us = 1000;
  EXPECT_NE(refusal(kChat, chat(), 504).find("took longer"), std::string::npos);
}

TEST_F(ChatApi, a_client_that_leaves_frees_its_place) {
  engine_.step_us = 1000;
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    peer_gone_ = true;
  });
  engine_.script = [](const Request&) { return std::vector<FakeEngine::Piece>(1000000); };
  EXPECT_EQ(call(kChat, chat()).status, 499);
  leaving.join();
  for (int i = 0; i < 2000 && (engine_.held != 0 || loop_->outstanding() != 0); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(engine_.held, 0);
  EXPECT_EQ(loop_->outstanding(), 0);
}

}  // namespace
}  // namespace dsv4
