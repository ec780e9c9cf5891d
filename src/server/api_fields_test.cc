// docs/api.md, field by field: what it calls ignored changes nothing, what it calls refused is named in a 400, and what is honoured
// reaches the engine. Fields with tests of their own (messages, tools, streams, log probabilities, ...) are in the other programs.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "base/file.h"
#include "server/api_fixture.h"

namespace dsv4 {
namespace {

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kResponses = "/v1/responses";
constexpr const char* kMessages = "/v1/messages";

struct Field {
  const char* path;
  const char* name;    // as docs/api.md has it
  const char* member;  // of the body
};

class ApiFields : public ApiTest {
 protected:
  // The least request of an endpoint, with a further member.
  static std::string body(const std::string& path, const std::string& member = "") {
    const std::string more = member.empty() ? "" : ", " + member;
    if (path == kChat) return R"({"messages": [{"role": "user", "content": "Hi"}])" + more + "}";
    if (path == kCompletions) return R"({"prompt": "Hi")" + more + "}";
    if (path == kResponses) return R"({"input": "Hi")" + more + "}";
    return R"({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50)" + more + "}";
  }
  // What the engine is asked for, as text.
  std::string asked(const std::string& path, const std::string& member) {
    last_request_ = {};
    const HttpReply reply = call(path, body(path, member));
    EXPECT_EQ(reply.status, 200) << member << " -> " << reply.body;
    if (reply.stream) {
      Collecting writer(peer_gone_);
      reply.stream(writer);
    }
    const Request& r = last_request_;
    std::string out = tokenizer_->decode(r.prompt).value();
    out += fmt::format("|{} {} {} {} {} {} {}", r.max_new_tokens, r.sampling.temperature, r.sampling.top_p, r.sampling.top_k, r.ignore_eos, r.num_logprobs,
                       r.stop.size());
    out += r.constraint != nullptr ? " constrained" : "";
    return out;
  }
};

constexpr const char* kTool = R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}])";

const Field kIgnored[] = {
    {kChat, "user", R"("user": "u")"},
    {kChat, "store", R"("store": true)"},
    {kChat, "metadata", R"("metadata": {"a": "b"})"},
    {kChat, "service_tier", R"("service_tier": "auto")"},
    {kChat, "safety_identifier", R"("safety_identifier": "x")"},
    {kChat, "prompt_cache_key", R"("prompt_cache_key": "x")"},
    {kChat, "prompt_cache_retention", R"("prompt_cache_retention": "24h")"},
    {kChat, "prediction", R"("prediction": {"type": "content", "content": "x"})"},
    {kChat, "verbosity", R"("verbosity": "low")"},
    {kChat, "modalities", R"("modalities": ["text"])"},
    {kChat, "stream_options.include_obfuscation", R"("stream": true, "stream_options": {"include_obfuscation": true})"},
    {kCompletions, "user", R"("user": "u")"},
    {kCompletions, "best_of", R"("best_of": 1)"},
    {kResponses, "user", R"("user": "u")"},
    {kResponses, "store", R"("store": true)"},
    {kResponses, "metadata", R"("metadata": {"a": "b"})"},
    {kResponses, "service_tier", R"("service_tier": "auto")"},
    {kResponses, "safety_identifier", R"("safety_identifier": "x")"},
    {kResponses, "prompt_cache_key", R"("prompt_cache_key": "x")"},
    {kResponses, "prompt_cache_retention", R"("prompt_cache_retention": "24h")"},
    {kResponses, "include", R"("include": ["reasoning.encrypted_content"])"},
    {kResponses, "truncation", R"("truncation": "disabled")"},
    {kResponses, "stream_options", R"("stream_options": {"include_obfuscation": false})"},
    {kResponses, "max_tool_calls", R"("max_tool_calls": 3)"},
    {kResponses, "text.verbosity", R"("text": {"verbosity": "low"})"},
    {kResponses, "reasoning.summary", R"("reasoning": {"summary": "auto"})"},
    {kResponses, "background: true", R"("background": false)"},
    {kMessages, "metadata", R"("metadata": {"user_id": "u"})"},
    {kMessages, "service_tier", R"("service_tier": "auto")"},
    {kMessages, "context_management", R"("context_management": {"edits": []})"},
    {kMessages, "cache_control", R"("cache_control": {"type": "ephemeral"})"},
    {kMessages, "inference_geo", R"("inference_geo": "us")"},
    {kMessages, "speed", R"("speed": "standard")"},
};

TEST_F(ApiFields, ignored_fields_change_nothing) {
  answer_with("x");
  for (const Field& f : kIgnored) EXPECT_EQ(asked(f.path, f.member), asked(f.path, "")) << f.path << " " << f.name;
  const std::string with_tool = asked(kChat, kTool);
  EXPECT_EQ(
      asked(
          kChat,
          R"("tools": [{"type": "function", "cache_control": {"type": "ephemeral"}, "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}])"),
      with_tool);
  EXPECT_EQ(asked(kChat, R"("thinking": {"type": "enabled", "budget_tokens": 100})"), asked(kChat, R"("thinking": {"type": "enabled"})"));
  EXPECT_EQ(asked(kMessages, R"("thinking": {"type": "enabled", "budget_tokens": 1024})"), asked(kMessages, R"("thinking": {"type": "enabled"})"));
}

const Field kRefused[] = {
    {kChat, "functions", R"("functions": [])"},
    {kChat, "function_call", R"("function_call": "auto")"},
    {kChat, "audio", R"("audio": {"voice": "alloy", "format": "wav"})"},
    {kChat, "web_search_options", R"("web_search_options": {})"},
    {kChat, "modalities", R"("modalities": ["text", "audio"])"},
    {kCompletions, "suffix", R"("suffix": "x")"},
    {kCompletions, "best_of", R"("best_of": 3)"},
    {kCompletions, "prompt_logprobs", R"("stream": true, "prompt_logprobs": 1)"},
    {kResponses, "previous_response_id", R"("previous_response_id": "resp_1")"},
    {kResponses, "conversation", R"("conversation": "conv_1")"},
    {kResponses, "prompt", R"("prompt": {"id": "p"})"},
    {kResponses, "background", R"("background": true)"},
    {kResponses, "tools", R"("tools": [{"type": "web_search"}])"},
    {kMessages, "container", R"("container": "c")"},
    {kMessages, "mcp_servers", R"("mcp_servers": [{"type": "url"}])"},
    {kMessages, "tools", R"("tools": [{"type": "bash_20250124", "name": "bash"}])"},
};

TEST_F(ApiFields, refused_fields_are_named) {
  for (const Field& f : kRefused) EXPECT_NE(refusal(f.path, body(f.path, f.member)).find(f.name), std::string::npos) << f.path << " " << f.name;
}

TEST_F(ApiFields, every_endpoint_refuses_what_it_does_not_know) {
  for (const char* path : {kChat, kCompletions, kResponses, kMessages}) {
    const HttpReply reply = call(path, body(path, R"("temprature": 0.5)"));
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_NE(reply.body.find("temprature"), std::string::npos) << path << reply.body;
  }
}

TEST_F(ApiFields, honoured_fields_reach_the_engine) {
  answer_with("x");
  const auto request_of = [&](const char* path, const char* member) {
    asked(path, member);
    return last_request_;
  };
  EXPECT_TRUE(request_of(kChat, R"("ignore_eos": true)").ignore_eos);
  EXPECT_TRUE(request_of(kCompletions, R"("ignore_eos": true)").ignore_eos);
  EXPECT_EQ(request_of(kCompletions, R"("max_tokens": 3)").max_new_tokens, 3);
  EXPECT_EQ(request_of(kCompletions, "").max_new_tokens, 16);
  EXPECT_EQ(request_of(kResponses, R"("max_output_tokens": 3)").max_new_tokens, 3);
  EXPECT_EQ(request_of(kMessages, R"("top_k": 3)").sampling.top_k, 3);
  for (const char* path : {kChat, kCompletions, kResponses, kMessages}) {
    EXPECT_EQ(request_of(path, R"("temperature": 0.5)").sampling.temperature, 0.5f) << path;
    EXPECT_EQ(request_of(path, R"("top_p": 0.25)").sampling.top_p, 0.25f) << path;
    EXPECT_EQ(request_of(path, R"("seed": 18)").sampling.seed, uint64_t{18}) << path;
    EXPECT_EQ(request_of(path, R"("frequency_penalty": 1)").sampling.frequency_penalty, 1.0f) << path;
  }
  EXPECT_EQ(request_of(kMessages, R"("stop_sequences": ["a", "b"])").stop.size(), 2u);
  EXPECT_EQ(request_of(kCompletions, R"("add_special_tokens": false)").prompt.size() + 1, request_of(kCompletions, "").prompt.size());
  EXPECT_EQ(request_of(kChat, R"("logprobs": true)").num_logprobs, 0);
  EXPECT_EQ(request_of(kResponses, R"("top_logprobs": 4)").num_logprobs, 4);
  // A form of the answer becomes a constraint, in each API's own words.
  EXPECT_NE(request_of(kChat, R"("response_format": {"type": "json_object"})").constraint, nullptr);
  EXPECT_EQ(request_of(kChat, R"("response_format": {"type": "text"})").constraint, nullptr);
  EXPECT_NE(request_of(kResponses, R"("text": {"format": {"type": "json_object"}})").constraint, nullptr);
  EXPECT_NE(request_of(kMessages, R"("output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {}}}})").constraint,
            nullptr);
  // So do forced calls.
  const std::string tool = std::string(kTool) + ", ";
  EXPECT_NE(request_of(kChat, (tool + R"("tool_choice": "required")").c_str()).constraint, nullptr);
  EXPECT_NE(request_of(kChat, (tool + R"("tool_choice": {"type": "function", "function": {"name": "f"}})").c_str()).constraint, nullptr);
  EXPECT_EQ(request_of(kChat, (tool + R"("tool_choice": "auto")").c_str()).constraint, nullptr);
  EXPECT_NE(
      request_of(
          kMessages,
          R"("tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}], "tool_choice": {"type": "any", "disable_parallel_tool_use": true})")
          .constraint,
      nullptr);
  // tool_choice none: the model is not shown the tools.
  EXPECT_EQ(asked(kChat, (tool + R"("tool_choice": "none")").c_str()), asked(kChat, ""));
}

TEST_F(ApiFields, the_ways_to_ask_for_thinking_are_one) {
  answer_with("x");
  const std::string plain = asked(kChat, ""), thinking = asked(kChat, R"("thinking": {"type": "enabled"})");
  EXPECT_NE(plain, thinking);
  EXPECT_EQ(asked(kChat, R"("enable_thinking": true)"), thinking);
  EXPECT_EQ(asked(kChat, R"("chat_template_kwargs": {"thinking": true})"), thinking);
  EXPECT_EQ(asked(kChat, R"("chat_template_kwargs": {"enable_thinking": true})"), thinking);
  EXPECT_EQ(asked(kChat, R"("reasoning_effort": "medium")"), thinking);
  for (const char* off :
       {R"("reasoning_effort": "none")", R"("reasoning_effort": "minimal")", R"("enable_thinking": false)", R"("thinking": {"type": "disabled"})"})
    EXPECT_EQ(asked(kChat, off), plain) << off;
  EXPECT_EQ(asked(kMessages, R"("thinking": {"type": "adaptive"})"), asked(kMessages, R"("thinking": {"type": "enabled"})"));
  EXPECT_NE(asked(kMessages, R"("thinking": {"type": "adaptive"})"), asked(kMessages, ""));
  EXPECT_NE(asked(kResponses, R"("reasoning": {"effort": "high"})"), asked(kResponses, ""));
  EXPECT_NE(refusal(kChat, body(kChat, R"("enable_thinking": true, "thinking": {"type": "disabled"})")).find("contradicts"), std::string::npos);
}

// Numbers that do not fit anything are refused by name, none is cut or wraps around.
TEST_F(ApiFields, numbers_beyond_all_ranges) {
  for (const char* member :
       {R"("seed": 18446744073709551616)", R"("seed": -99999999999999999999999)", R"("max_tokens": 1e30)", R"("max_tokens": 4294967297)", R"("n": 99999999999)",
        R"("top_k": 5000000000)", R"("temperature": 1e400)", R"("top_p": -0.1)", R"("logprobs": true, "top_logprobs": 99999999999999999999)"}) {
    const std::string name = std::string(member).substr(1, std::string(member).find('"', 1) - 1);
    EXPECT_NE(refusal(kChat, body(kChat, member)).find(name == "logprobs" ? "top_logprobs" : name), std::string::npos) << member;
  }
  answer_with("x");
  EXPECT_EQ(asked(kChat, R"("max_tokens": 5.0)"), asked(kChat, R"("max_tokens": 5)"));
}

TEST_F(ApiFields, the_page_lists_them) {
  const std::string page = read_file("docs/api.md").value();
  const auto section = [&](const std::string& path) {
    const size_t at = page.find("## POST " + path);
    EXPECT_NE(at, std::string::npos) << path;
    return page.substr(at, page.find("\n## ", at + 1) - at);
  };
  for (const Field& f : kIgnored) EXPECT_NE(section(f.path).find("`" + std::string(f.name)), std::string::npos) << f.path << " " << f.name;
  for (const Field& f : kRefused) EXPECT_NE(section(f.path).find("`" + std::string(f.name)), std::string::npos) << f.path << " " << f.name;
}

}  // namespace
}  // namespace dsv4
