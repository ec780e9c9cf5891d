#include "server/api_fixture.h"

namespace dsv4 {
namespace {

constexpr const char* kPath = "/v1/messages";

class MessagesApi : public ApiTest {
 protected:
  static std::string body(const std::string& more = "") {
    return R"({"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}])" + more + "}";
  }
  std::string prompt() { return tokenizer_->decode(last_request_.prompt).value(); }
  // The type of each event, runs of the same one as one word.
  static std::vector<std::string> types_of(const std::vector<Json>& all) {
    std::vector<std::string> out;
    for (const Json& e : all) {
      std::string type = e["type"];
      if (type == "content_block_delta") type = e["delta"]["type"];
      if (out.empty() || out.back() != type) out.push_back(type);
    }
    return out;
  }
};

const std::string kTool =
    R"(, "tools": [{"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}])";
const std::string kCall =
    "Looking.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

TEST_F(MessagesApi, answers_whole) {
  answer_with("Hello.");
  const Json out = post(
      kPath,
      body(
          R"(, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], "metadata": {"user_id": "u"}, "stop_sequences": ["END"])"));
  EXPECT_EQ(out["type"], "message");
  EXPECT_EQ(out["role"], "assistant");
  EXPECT_EQ(out["content"], Json::parse(R"([{"type": "text", "text": "Hello."}])"));
  EXPECT_EQ(out["stop_reason"], "end_turn");
  EXPECT_TRUE(out["stop_sequence"].is_null());
  EXPECT_EQ(out["usage"]["input_tokens"], static_cast<int64_t>(last_request_.prompt.size()));
  EXPECT_EQ(prompt(), "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>");
  EXPECT_EQ(last_request_.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(last_request_.max_new_tokens, 50);
  EXPECT_EQ(post("/v1/messages/count_tokens", R"({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]})")["input_tokens"], 5);
}

TEST_F(MessagesApi, streams_blocks) {
  answer_with("Let me see.</think>Four.");
  const auto all = events(stream(kPath, body(R"(, "stream": true, "thinking": {"type": "enabled", "budget_tokens": 1024})")));
  EXPECT_EQ(types_of(all), (std::vector<std::string>{"message_start", "content_block_start", "thinking_delta", "content_block_stop", "content_block_start",
                                                     "text_delta", "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(all[0]["message"]["usage"]["input_tokens"], static_cast<int64_t>(last_request_.prompt.size()));
  std::string thinking, text;
  int64_t index = -1;
  for (const Json& e : all) {
    if (e["type"] == "content_block_start") EXPECT_EQ(e["index"], ++index);
    if (e["type"] != "content_block_delta") continue;
    EXPECT_EQ(e["index"], index);
    if (e["delta"].contains("thinking")) thinking += e["delta"]["thinking"].get<std::string>();
    if (e["delta"].contains("text")) text += e["delta"]["text"].get<std::string>();
  }
  EXPECT_EQ(thinking, "Let me see.");
  EXPECT_EQ(text, "Four.");
  EXPECT_EQ(all[all.size() - 2]["delta"]["stop_reason"], "end_turn");
  EXPECT_GT(all[all.size() - 2]["usage"]["output_tokens"], 0);
}

TEST_F(MessagesApi, tools_there_and_back) {
  answer_with(kCall);
  const Json out = post(kPath, body(kTool));
  EXPECT_EQ(out["stop_reason"], "tool_use");
  ASSERT_EQ(out["content"].size(), 2u);
  EXPECT_EQ(out["content"][0]["text"], "Looking.");
  EXPECT_EQ(out["content"][1]["type"], "tool_use");
  EXPECT_EQ(out["content"][1]["name"], "get_weather");
  EXPECT_EQ(out["content"][1]["input"], Json::parse(R"({"city": "Paris"})"));
  EXPECT_NE(prompt().find(R"({"name": "get_weather", "description": "Weather", "parameters": {"type": "object")"), std::string::npos);

  const auto all = events(stream(kPath, body(kTool + R"(, "stream": true)")));
  std::string partial;
  for (const Json& e : all) {
    if (e["type"] == "content_block_delta" && e["delta"]["type"] == "input_json_delta") partial += e["delta"]["partial_json"].get<std::string>();
  }
  EXPECT_EQ(partial, R"({"city": "Paris"})");

  answer_with("Sunny.");
  post(kPath, R"({"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Looking."}, {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]}, {"type": "text", "text": "Well?"}]}])" +
                  kTool + "}");
  EXPECT_NE(prompt().find("<tool_result>sunny</tool_result>\n\nWell?"), std::string::npos) << prompt();
}

TEST_F(MessagesApi, an_answer_may_be_begun) {
  answer_with(" blue.");
  post(kPath, R"({"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Sky?"}, {"role": "assistant", "content": "It is"}]})");
  EXPECT_EQ(prompt().substr(prompt().size() - 5), "It is");
}

TEST_F(MessagesApi, the_end_s_reasons) {
  engine_.script = [](const Request& r) { return std::vector<FakeEngine::Piece>(static_cast<size_t>(r.max_new_tokens) + 5); };
  EXPECT_EQ(post(kPath, body())["stop_reason"], "max_tokens");
}

TEST_F(MessagesApi, faults_have_anthropic_s_form) {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"model": "tiny", "messages": [{"role": "user", "content": "x"}]})", "max_tokens is missing"},
      {R"({"model": "tiny", "max_tokens": 5, "messages": []})", "messages must be a non-empty array"},
      {R"({"model": "tiny", "max_tokens": 5, "messages": [{"role": "robot", "content": "x"}]})", "messages[0].role"},
      {R"({"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})",
       "messages[0].content[0].type is \"image\""},
      {R"({"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}]})",
       "text only"},
      {body(R"(, "tools": [{"type": "web_search_20250305", "name": "web_search"}])"), "runs no tools of its own"},
      {body(R"(, "tool_choice": {"type": "tool", "name": "f"})"), "tools is empty"},
      {body(R"(, "tool_choice": {"type": "maybe"})"), "tool_choice.type"},
      {body(R"(, "thinking": {"type": "deep"})"), "thinking.type"},
      {body(R"(, "temperature": 5)"), "temperature is 5"},
      {body(R"(, "n": 2)"), "unknown field \"n\""},
      {"nonsense", "body: line 1"},
  };
  for (const auto& [request, message] : cases) {
    EXPECT_NE(refusal(kPath, request).find(message), std::string::npos) << request << "\n  -> " << refusal(kPath, request);
  }
  const Json error = json(call(kPath, body(R"(, "temperature": 5)")));
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "invalid_request_error");
  EXPECT_EQ(Json::parse(refusal_body("/v1/messages", 401, "m"))["error"]["type"], "authentication_error");
}

}  // namespace
}  // namespace dsv4
