#include <gtest/gtest.h>

#include "base/file.h"
#include "text/completion_parser.h"
#include "text/prompt_encoder.h"
#include "text/text_rows.h"

namespace dsv4 {
namespace {

constexpr const char* kWordingFile = "models/dsv4-tiny/encoding/encoding_dsv4.py";

std::string wording() {
  const Result<std::string> source = read_file(kWordingFile);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return source.ok() ? *source : "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// The same wording with the effort text of the first release.
std::string april_wording() {
  std::string source = wording();
  const size_t begin = source.find("REASONING_EFFORT_PROMPTS"), end = source.find("TOOLS_TEMPLATE");
  return source.substr(0, begin) + "REASONING_EFFORT_MAX = (\n    \"Think hard.\\n\\n\"\n)\n" + source.substr(end);
}

PromptEncoder encoder(const std::string& source) {
  const Result<PromptEncoder> encoder = PromptEncoder::from_source(source, "w.py");
  EXPECT_TRUE(encoder.ok()) << encoder.status().message();
  return *encoder;
}

std::string render(const PromptEncoder& encoder, const std::string& messages, const RenderOptions& options = {}) {
  const auto parsed = parse_chat_messages(std::string_view(messages));
  if (!parsed.ok()) return "error: " + parsed.status().message();
  const Result<std::string> prompt = encoder.render(*parsed, options);
  return prompt.ok() ? *prompt : "error: " + prompt.status().message();
}

const std::string kBos = "<｜begin▁of▁sentence｜>", kEos = "<｜end▁of▁sentence｜>", kUser = "<｜User｜>", kAssistant = "<｜Assistant｜>";

RenderOptions thinking(const std::string& effort = "") { return {.thinking_mode = ThinkingMode::kThinking, .drop_thinking = true, .reasoning_effort = effort}; }

TEST(PromptEncoder, effort_of_the_first_release) {
  const PromptEncoder april = encoder(april_wording());
  const std::string messages = R"([{"role":"user","content":"hi"}])";
  const std::string rest = kUser + "hi" + kAssistant + "<think>";
  EXPECT_EQ(april.effort_names(), (std::vector<std::string>{"none", "high", "max"}));
  EXPECT_EQ(render(april, messages, thinking()), kBos + rest);
  EXPECT_EQ(render(april, messages, thinking("none")), kBos + rest);
  EXPECT_EQ(render(april, messages, thinking("high")), kBos + rest);
  EXPECT_EQ(render(april, messages, thinking("max")), kBos + "Think hard.\n\n" + rest);
  EXPECT_EQ(render(april, messages, thinking("low")), "error: reasoning_effort must be one of none, high, max, is \"low\"");
  EXPECT_EQ(render(april, messages, {.reasoning_effort = "max"}), kBos + kUser + "hi" + kAssistant + "</think>");  // chat mode shows none
}

TEST(PromptEncoder, effort_of_the_second_release) {
  const PromptEncoder second = encoder(wording());
  EXPECT_EQ(second.effort_names(), (std::vector<std::string>{"low", "high", "max"}));
  EXPECT_EQ(second.default_effort(), "low");
  const std::string messages = R"([{"role":"user","content":"hi"}])";
  EXPECT_EQ(render(second, messages, thinking("max")), kBos + "Effort: max.\nCheck every step from two sides.\n\n" + kUser + "hi" + kAssistant + "<think>");
  EXPECT_EQ(render(second, messages, thinking("none")), "error: reasoning_effort must be one of low, high, max, is \"none\"");
  EXPECT_EQ(render(second, messages, {.reasoning_effort = "none"}).substr(0, 6), "error:");
  const PromptEncoder high = encoder(replaced(wording(), "DEFAULT_REASONING_EFFORT = \"low\"", "DEFAULT_REASONING_EFFORT = \"high\""));
  EXPECT_EQ(render(high, messages, thinking()), render(second, messages, thinking("high")));
}

TEST(PromptEncoder, messages_that_the_goldens_lack) {
  const PromptEncoder e = encoder(wording());
  // An unfinished assistant message.
  EXPECT_EQ(render(e, R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yes","wo_eos":true}])"),
            kBos + kUser + "hi" + kAssistant + "</think>yes");
  // Parts in any role; null content.
  EXPECT_EQ(
      render(e, R"([{"role":"system","content":[{"type":"text","text":"a"},{"type":"image_url"},{"type":"text","text":"b"}]},{"role":"user","content":null}])"),
      kBos + "a\n\n[Unsupported image_url]\n\nb" + kUser + kAssistant + "</think>");
  // A user message with a task takes no later user message; a tool result still joins it.
  EXPECT_EQ(render(e, R"([{"role":"user","content":"a","task":"title"},{"role":"user","content":"b"}])"),
            kBos + kUser + "a" + kUser + "b" + kAssistant + "</think>");
  EXPECT_EQ(render(e, R"([{"role":"user","content":"a","task":"title"},{"role":"tool","content":"r"}])"),
            kBos + kUser + "a\n\n<tool_result>r</tool_result><｜title｜>");
  // After a task, no reasoning.
  EXPECT_EQ(render(e, R"([{"role":"user","content":"a","task":"query"},{"role":"assistant","content":"q","reasoning_content":"r"}])", thinking()),
            kBos + kUser + "a<｜query｜>q" + kEos);
  // A lone assistant message counts as after the last user message.
  EXPECT_EQ(render(e, R"([{"role":"assistant","content":"q","reasoning_content":"r"}])", thinking()), kBos + "r</think>q" + kEos);
  // Braces in content are content.
  EXPECT_EQ(render(e, R"([{"role":"system","content":"{content} {{x}} {"}])"), kBos + "{content} {{x}} {");
}

TEST(PromptEncoder, tool_results_follow_the_order_of_calls) {
  const PromptEncoder e = encoder(wording());
  const std::string calls = R"({"role":"assistant","content":null,"tool_calls":[
      {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},
      {"id":"b","type":"function","function":{"name":"f","arguments":"{}"}},
      {"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]})";
  const auto tool = [](const std::string& id) { return ",{\"role\":\"tool\",\"tool_call_id\":\"" + id + "\",\"content\":\"" + id + "\"}"; };
  const std::string prompt = render(e, "[" + calls + tool("c") + ",{\"role\":\"user\",\"content\":\"t\"}" + tool("a") + tool("b") + "]");
  const std::string expected = kUser + "<tool_result>a</tool_result>\n\nt\n\n<tool_result>b</tool_result>\n\n<tool_result>c</tool_result>";
  EXPECT_NE(prompt.find(expected), std::string::npos) << prompt;
  // An unknown id counts as the first call's.
  const std::string odd = render(e, "[" + calls + tool("b") + tool("x") + tool("a") + "]");
  EXPECT_NE(odd.find("<tool_result>x</tool_result>\n\n<tool_result>a</tool_result>\n\n<tool_result>b</tool_result>"), std::string::npos) << odd;
}

TEST(PromptEncoder, tool_call_arguments) {
  const PromptEncoder e = encoder(wording());
  const auto arguments = [&](const std::string& json) {
    ChatMessage message;
    message.role = ChatRole::kAssistant;
    message.tool_calls = {{"id", "f", json}};
    const std::string prompt = *e.render({message}, {});
    const std::string before = "<｜DSML｜invoke name=\"f\">\n", after = "\n</｜DSML｜invoke>";
    const size_t begin = prompt.find(before) + before.size();
    return prompt.substr(begin, prompt.find(after) - begin);
  };
  const auto tag = [](const char* name, const char* is_string, const char* value) {
    return std::string("<｜DSML｜parameter name=\"") + name + "\" string=\"" + is_string + "\">" + value + "</｜DSML｜parameter>";
  };
  EXPECT_EQ(arguments("{}"), "");
  EXPECT_EQ(arguments(R"({"s":"a\n\"b\"","n":1.50,"big":123456789012345678901234567890,"o":{"k":[1,2]},"z":null})"),
            tag("s", "true", "a\n\"b\"") + "\n" + tag("n", "false", "1.5") + "\n" + tag("big", "false", "123456789012345678901234567890") + "\n" +
                tag("o", "false", "{\"k\": [1, 2]}") + "\n" + tag("z", "false", "null"));
  EXPECT_EQ(arguments(" {\"a\":NaN,\"b\":1,\"a\":-Infinity} "), tag("a", "false", "-Infinity") + "\n" + tag("b", "false", "1"));
  EXPECT_EQ(arguments("not json"), tag("arguments", "true", "not json"));
  EXPECT_EQ(arguments("[1,2]"), tag("arguments", "true", "[1,2]"));
  EXPECT_EQ(arguments(""), tag("arguments", "true", ""));
  EXPECT_EQ(arguments("{\"a\":\"\\ud800\"}"), tag("arguments", "true", "{\"a\":\"\\ud800\"}"));
}

TEST(PromptEncoder, refuses_unusable_wording) {
  const std::pair<std::string, const char*> cases[] = {
      {replaced(wording(), "eos_token: str =", "eos_token_: str ="), "eos_token is missing"},
      {replaced(wording(), "USER_SP_TOKEN = \"<｜User｜>\"", "USER_SP_TOKEN = user()"), "USER_SP_TOKEN cannot be read: line 9: not a plain string expression"},
      {replaced(wording(), "dsml_token: str = \"｜DSML｜\"", "dsml_token: str = \"\""), "dsml_token must not be empty"},
      {replaced(wording(), "system_msg_template: str = \"{content}\"", "system_msg_template: str = \"{text}\""), "system_msg_template: unknown field {text}"},
      {replaced(wording(), "system_msg_template: str = \"{content}\"", "system_msg_template: str = \"\""), "system_msg_template must hold the field {content}"},
      {replaced(wording(), "{tool_schemas}", "{tool_schemas!r}"), "TOOLS_TEMPLATE: the field {tool_schemas!r} is not a plain name"},
      {replaced(wording(), "DEFAULT_REASONING_EFFORT = \"low\"", "DEFAULT_REASONING_EFFORT = \"mid\""), "DEFAULT_REASONING_EFFORT is \"mid\""},
      {replaced(wording(), "DEFAULT_REASONING_EFFORT = \"low\"", ""), "DEFAULT_REASONING_EFFORT is missing"},
      {replaced(wording(), "DS_TASK_SP_TOKENS = {", "DS_TASK_SP_TOKENS = {1: 2,"), "DS_TASK_SP_TOKENS cannot be read"},
      {"", "is missing"},
      {"x = '", "w.py: line 1: a string is never closed"},
  };
  for (const auto& [source, expected] : cases) {
    const Result<PromptEncoder> encoder = PromptEncoder::from_source(source, "w.py");
    ASSERT_FALSE(encoder.ok()) << expected;
    EXPECT_NE(encoder.status().message().find(expected), std::string::npos) << encoder.status().message();
  }
}

TEST(PromptEncoder, a_model_without_wording_cannot_chat) {
  const Result<PromptEncoder> encoder = PromptEncoder::load("tests/data");
  ASSERT_FALSE(encoder.ok());
  EXPECT_EQ(encoder.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(encoder.status().message(),
            "tests/data/encoding/encoding_dsv4.py does not exist: without its prompt wording this model completes raw text but cannot chat");
}

TEST(ChatMessages, errors_name_place_rule_and_value) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "messages must be an array, is an object"},
      {"[]", "messages must not be empty"},
      {"[1]", "messages[0] must be an object, is a number"},
      {R"([{"content":"a"}])", "messages[0].role must be system, user, developer, assistant, tool or latest_reminder, is \"\""},
      {R"([{"role":"function","content":"a"}])", "messages[0].role must be system, user, developer, assistant, tool or latest_reminder, is \"function\""},
      {R"([{"role":1}])", "messages[0].role must be a string, is a number"},
      {R"([{"role":"user","content":"a"},{"role":"user","content":5}])", "messages[1].content must be a string, an array of parts or null, is a number"},
      {R"([{"role":"user","content":["a"]}])", "messages[0].content[0] must be an object with a \"type\" string"},
      {R"([{"role":"user","content":[{"type":"text","text":1}]}])", "messages[0].content[0].text must be a string, is a number"},
      {R"([{"role":"user","content":"a","tool_calls":[{}]}])", "messages[0].tool_calls belongs to assistant messages, not to the role user"},
      {R"([{"role":"user","content":"a","tools":[{}]}])", "messages[0].tools belongs to system and developer messages, not to the role user"},
      {R"([{"role":"user","content":"a","reasoning_content":"r"}])", "messages[0].reasoning_content belongs to assistant messages, not to the role user"},
      {R"([{"role":"system","content":"a","task":"title"}])", "messages[0].task belongs to user and developer messages, not to the role system"},
      {R"([{"role":"developer","content":""}])", "messages[0].content of a developer message must not be empty"},
      {R"([{"role":"assistant","tool_calls":{}}])", "messages[0].tool_calls must be an array, is an object"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}])", "messages[0].tool_calls[0].function.name must be a non-empty string"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])", "messages[0].tool_calls[0].function.arguments is missing"},
      {R"([{"role":"assistant","tool_calls":[{"type":"custom","function":{"name":"f","arguments":""}}]}])",
       "messages[0].tool_calls[0].type must be \"function\""},
      {R"([{"role":"assistant","function_call":{"name":"f"}}])", "messages[0].function_call is not supported: use tool_calls"},
      {R"([{"role":"assistant","wo_eos":"yes"}])", "messages[0].wo_eos must be a boolean, is a string"},
      {R"([{"role":"system","tools":[{"type":"web_search"}]}])", "messages[0].tools[0].type must be \"function\""},
      {R"([{"role":"system","tools":[{"type":"function","function":{}}]}])", "messages[0].tools[0].function.name must be a non-empty string"},
      {R"([{"role":"user","content":"a","content":"b"}])", "messages: line 1, column 31: duplicate member \"content\""},
  };
  for (const auto& [json, expected] : cases) {
    const auto messages = parse_chat_messages(std::string_view(json));
    ASSERT_FALSE(messages.ok()) << json;
    EXPECT_EQ(messages.status().message(), expected);
  }
  const auto task = parse_chat_messages(std::string_view(R"([{"role":"user","content":"a","task":"sing"}])"));
  ASSERT_TRUE(task.ok());
  EXPECT_EQ(encoder(wording()).render(*task, {}).status().message(),
            "messages[0].task must be one of action, query, authority, domain, title, read_url, is \"sing\"");
}

// What clients echo back from an answer is no error.
TEST(ChatMessages, members_without_meaning_are_passed_over) {
  const auto messages = parse_chat_messages(std::string_view(
      R"([{"role":"assistant","content":"a","refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":null,"name":"n"}])"));
  ASSERT_TRUE(messages.ok()) << messages.status().message();
  EXPECT_EQ(messages->front().content, "a");
  EXPECT_EQ(messages->front().name, "n");
}

TEST(ChatMessages, arguments_may_be_an_object) {
  const auto messages =
      parse_chat_messages(std::string_view(R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":{"b":1.0,"a":"x"}}}]}])"));
  ASSERT_TRUE(messages.ok()) << messages.status().message();
  EXPECT_EQ(messages->front().tool_calls.front().arguments, R"({"b": 1.0, "a": "x"})");
}

TEST(ChatMessages, request_tools_go_to_the_first_system_message) {
  std::vector<ChatMessage> messages(1);
  attach_request_tools({}, "", &messages);
  EXPECT_EQ(messages.size(), 1u);
  attach_request_tools({"{1}"}, "", &messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, ChatRole::kSystem);
  attach_request_tools({"{2}"}, "{f}", &messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].tool_schemas, (std::vector<std::string>{"{1}", "{2}"}));
  EXPECT_EQ(messages[0].response_format, "{f}");
}

// What is rendered as an answer parses back to it, strictly.
TEST(PromptEncoder, rendered_answers_parse_back) {
  const PromptEncoder e = encoder(wording());
  ChatMessage user, answer;
  user.content = "q";
  answer.role = ChatRole::kAssistant;
  answer.reasoning_content = "why\n\nso";
  answer.content = "text\n";
  answer.tool_calls = {{"1", "f", R"({"a": "x\n</y> \"q\"", "b": [1, {"c": null}], "name\" with quotes": "v"})"}, {"2", "g", "{}"}};
  const std::string head = *e.render({user}, thinking());
  const std::string whole = *e.render({user, answer}, thinking());
  ASSERT_EQ(whole.substr(0, head.size()), head);
  const auto parsed = parse_completion_strict(std::string_view(whole).substr(head.size()), ThinkingMode::kThinking, e.markup());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->reasoning_content, answer.reasoning_content);
  EXPECT_EQ(parsed->content, answer.content);
  ASSERT_EQ(parsed->tool_calls.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(parsed->tool_calls[i].name, answer.tool_calls[i].name);
    EXPECT_EQ(parsed->tool_calls[i].arguments, answer.tool_calls[i].arguments);
  }
}

TEST(TextRows, errors_name_file_and_line) {
  const PromptEncoder e = encoder(wording());
  const auto row = [&](std::string_view text, const std::string& name) { return render_row(e, text, {}, name); };
  const std::string good = R"({"messages":[{"role":"user","content":"a"}]})";
  const Result<std::string> two = map_json_lines(good + "\n\n" + good, "in", row);
  ASSERT_TRUE(two.ok()) << two.status().message();
  EXPECT_EQ(std::count(two->begin(), two->end(), '\n'), 2);
  const std::pair<const char*, const char*> cases[] = {
      {"{", "in:3: line 1, column 2: expected a member name in quotes"},
      {"[]", "in:3: must be a JSON object, is an array"},
      {"{}", "in:3: lacks \"messages\""},
      {R"({"messages":[],"thinking_mode":"loud"})", "in:3: thinking_mode must be chat or thinking, is \"loud\""},
      {R"({"messages":[],"thinking_mode":1})", "in:3: \"thinking_mode\" must be a string, is a number"},
      {R"({"messages":[],"drop_thinking":1})", "in:3: \"drop_thinking\" must be a boolean, is a number"},
      {R"({"messages":[],"options":{"x":1}})", "in:3: \"options\" has the unknown member \"x\""},
      {R"({"messages":[]})", "in:3: messages must not be empty"},
      {R"({"messages":[{"role":"user","content":"a"}],"options":{"reasoning_effort":"x"}})", "in:3: reasoning_effort must be one of low, high, max, is \"x\""},
  };
  for (const auto& [bad, expected] : cases) EXPECT_EQ(map_json_lines(good + "\n\n" + bad, "in", row).status().message(), expected);
  // U+2028 ends no line.
  EXPECT_TRUE(map_json_lines("{\"messages\":[{\"role\":\"user\",\"content\":\"a\u2028b\"}]}", "in", row).ok());
}

TEST(TextRows, options_may_be_nested) {
  const PromptEncoder e = encoder(wording());
  const std::string messages = R"("messages":[{"role":"user","content":"a"}])";
  const std::string flat = "{" + messages + R"(,"thinking_mode":"thinking","drop_thinking":false,"reasoning_effort":"max"})";
  const std::string nested = "{" + messages + R"(,"options":{"thinking_mode":"thinking","drop_thinking":false,"reasoning_effort":"max"}})";
  EXPECT_EQ(*render_row(e, flat, {}, "in"), *render_row(e, nested, {}, "in"));
  EXPECT_NE(*render_row(e, flat, {}, "in"), *render_row(e, "{" + messages + "}", {}, "in"));
}

}  // namespace
}  // namespace dsv4
