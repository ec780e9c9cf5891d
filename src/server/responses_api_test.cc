#include "server/api_fixture.h"

namespace dsv4 {
namespace {

constexpr const char* kPath = "/v1/responses";

class ResponsesApi : public ApiTest {
 protected:
  std::string prompt() { return tokenizer_->decode(last_request_.prompt).value(); }
};

const std::string kTool =
    R"(, "tools": [{"type": "function", "name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, "strict": true}])";
const std::string kCall =
    "Looking.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

TEST_F(ResponsesApi, answers_whole) {
  answer_with("Hello.");
  const Json out =
      post(kPath, R"({"model": "tiny", "input": "Hi", "instructions": "Be brief.", "store": true, "metadata": {"a": "b"}, "max_output_tokens": 20})");
  EXPECT_EQ(out["object"], "response");
  EXPECT_EQ(out["status"], "completed");
  ASSERT_EQ(out["output"].size(), 1u);
  EXPECT_EQ(out["output"][0]["type"], "message");
  EXPECT_EQ(out["output"][0]["status"], "completed");
  EXPECT_EQ(out["output"][0]["content"][0]["type"], "output_text");
  EXPECT_EQ(out["output"][0]["content"][0]["text"], "Hello.");
  EXPECT_EQ(out["instructions"], "Be brief.");
  EXPECT_EQ(out["metadata"]["a"], "b");
  EXPECT_EQ(out["store"], false);  // nothing is stored, whatever was asked
  EXPECT_EQ(out["usage"]["input_tokens"], static_cast<int64_t>(last_request_.prompt.size()));
  EXPECT_EQ(prompt(), "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>");
}

TEST_F(ResponsesApi, streams_events_in_order) {
  answer_with("Hm.</think>" + kCall);
  const auto all = events(stream(kPath, R"({"model": "tiny", "input": "Weather?", "stream": true, "reasoning": {"effort": "high"})" + kTool + "}"));
  std::vector<std::string> types;
  std::string reasoning, text, arguments;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["sequence_number"], i);
    const std::string type = all[i]["type"];
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "response.reasoning_text.delta") reasoning += all[i]["delta"].get<std::string>();
    if (type == "response.output_text.delta") text += all[i]["delta"].get<std::string>();
    if (type == "response.function_call_arguments.delta") arguments += all[i]["delta"].get<std::string>();
  }
  EXPECT_EQ(types, (std::vector<std::string>{"response.created", "response.in_progress",  //
                                             "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
                                             "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",  //
                                             "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                                             "response.output_text.done", "response.content_part.done",
                                             "response.output_item.done",  //
                                             "response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done",
                                             "response.output_item.done", "response.completed"}));
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(text, "Looking.");
  EXPECT_EQ(arguments, R"({"city": "Paris"})");
  const Json& response = all.back()["response"];
  EXPECT_EQ(response["status"], "completed");
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][2]["name"], "get_weather");
  EXPECT_EQ(response["output"][2]["arguments"], R"({"city": "Paris"})");
  EXPECT_EQ(response["output"][2]["status"], "completed");
}

TEST_F(ResponsesApi, a_conversation_comes_as_items) {
  answer_with("Sunny.");
  post(kPath, R"({"model": "tiny", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "Looking.", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Paris\"}"},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"}])" +
                  kTool + "}");
  EXPECT_NE(prompt().find("Looking.\n\n<｜DSML｜tool_calls>"), std::string::npos) << prompt();
  EXPECT_NE(prompt().find("<tool_result>sunny</tool_result>"), std::string::npos);
}

TEST_F(ResponsesApi, cut_off_is_incomplete) {
  engine_.script = [](const Request& r) { return std::vector<FakeEngine::Piece>(static_cast<size_t>(r.max_new_tokens) + 5); };
  const Json out = post(kPath, R"({"model": "tiny", "input": "Hi", "max_output_tokens": 3})");
  EXPECT_EQ(out["status"], "incomplete");
  EXPECT_EQ(out["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(out["output"][0]["status"], "incomplete");
}

TEST_F(ResponsesApi, faults_are_named) {
  const std::pair<std::string, const char*> cases[] = {
      {"{}", "input is missing"},
      {R"({"input": []})", "non-empty array"},
      {R"({"input": "x", "previous_response_id": "resp_1"})", "this server stores nothing"},
      {R"({"input": "x", "background": true})", "background"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]})", "\"input_image\"; this model reads text only"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input[0].type"},
      {R"({"input": "x", "tools": [{"type": "web_search"}]})", "only functions can be called"},
      {R"({"input": "x", "text": {"format": {"type": "yaml"}}})", "text.format.type"},
      {R"({"input": "x", "reasoning": {"effort": "heroic"}})", "reasoning.effort"},
      {R"({"input": "x", "messages": []})", "unknown field \"messages\""},
  };
  for (const auto& [request, message] : cases)
    EXPECT_NE(refusal(kPath, request).find(message), std::string::npos) << request << "\n  -> " << refusal(kPath, request);
}

}  // namespace
}  // namespace dsv4
