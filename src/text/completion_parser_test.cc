#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "base/json.h"
#include "text/completion_parser.h"
#include "text/python_json.h"
#include "text/utf8.h"

namespace dsv4 {
namespace {

const ChatMarkup kMarkup = {.bos = "<｜begin▁of▁sentence｜>",
                            .eos = "<｜end▁of▁sentence｜>",
                            .thinking_start = "<think>",
                            .thinking_end = "</think>",
                            .dsml = "｜DSML｜",
                            .tool_calls_block_name = "tool_calls"};

// In these tests "§" stands for the DSML token and "$" for the end token.
std::string marked(std::string text) {
  const std::pair<const char*, const std::string*> tokens[] = {{"§", &kMarkup.dsml}, {"$", &kMarkup.eos}};
  for (const auto& [mark, token] : tokens) {
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + token->size())) {
      text.replace(at, std::string(mark).size(), *token);
    }
  }
  return text;
}

// reasoning | content | name(arguments)[!] ..., "!" for a call the answer ended in.
std::string print(const ParsedCompletion& parsed) {
  std::string out = parsed.reasoning_content + "|" + parsed.content + "|";
  for (const ParsedToolCall& call : parsed.tool_calls) {
    EXPECT_TRUE(Json::parse(call.arguments).is_object()) << call.arguments;
    out += call.name + "(" + call.arguments + ")" + (call.complete ? "" : "!");
  }
  return out;
}

ParsedCompletion parse_in_pieces(const std::string& text, ThinkingMode mode, const std::vector<size_t>& ends) {
  CompletionParser parser(kMarkup, mode);
  ParsedCompletion parsed;
  const auto take = [&](const std::vector<CompletionEvent>& events) {
    for (const CompletionEvent& event : events) {
      EXPECT_FALSE(find_invalid_utf8(event.text).has_value());
      switch (event.kind) {
        case CompletionEvent::Kind::kReasoning: parsed.reasoning_content += event.text; break;
        case CompletionEvent::Kind::kContent: parsed.content += event.text; break;
        case CompletionEvent::Kind::kToolCallStart: parsed.tool_calls.push_back({event.text, "", true}); break;
        case CompletionEvent::Kind::kToolCallArguments: parsed.tool_calls.at(event.index).arguments += event.text; break;
        case CompletionEvent::Kind::kToolCallEnd: parsed.tool_calls.at(event.index).complete = event.complete; break;
      }
    }
  };
  size_t begin = 0;
  for (const size_t end : ends) {
    take(parser.feed(std::string_view(text).substr(begin, end - begin)));
    begin = end;
  }
  take(parser.feed(std::string_view(text).substr(begin)));
  take(parser.finish());
  return parsed;
}

struct Case {
  const char* why;
  ThinkingMode mode;
  const char* text;
  const char* expected;
};

constexpr ThinkingMode kChat = ThinkingMode::kChat, kThink = ThinkingMode::kThinking;

const Case kCases[] = {
    {"empty", kChat, "", "||"},
    {"end token only", kChat, "$", "||"},
    {"plain", kChat, "hi\n\n$", "|hi\n\n|"},
    {"no end token", kChat, "hi", "|hi|"},
    {"several end tokens", kChat, "hi$$", "|hi|"},
    {"end token inside", kChat, "a$b$", "|a<｜end▁of▁sentence｜>b|"},
    {"cut end token is text", kChat, "hi<｜end▁o", "|hi<｜end▁o|"},
    {"reasoning", kThink, "r</think>c$", "r|c|"},
    {"reasoning never ends", kThink, "r\n$", "r\n||"},
    {"cut end of reasoning is text", kThink, "r</thi", "r</thi||"},
    {"repeated thinking start", kThink, "<think>r</think>c$", "r|c|"},
    {"thinking in chat mode", kChat, "<think>r</think>c$", "r|c|"},
    {"thinking tokens inside content are text", kChat, "a<think>b</think>c", "|a<think>b</think>c|"},
    {"a call", kChat,
     "c\n\n<§tool_calls>\n<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"true\">x\"\n</§parameter>\n<§parameter name=\"b\" string=\"false\">[1, "
     "2]</§parameter>\n</§invoke>\n</§tool_calls>$",
     "|c|f({\"a\": \"x\\\"\\n\", \"b\": [1, 2]})"},
    {"no parameters", kChat, "<§tool_calls>\n<§invoke name=\"f\">\n\n</§invoke>\n</§tool_calls>$", "||f({})"},
    {"no newline before the block", kChat, "c<§tool_calls>\n<§invoke name=\"f\">\n</§invoke>\n</§tool_calls>$", "|c|f({})"},
    {"more newlines before the block", kChat, "c\n\n\n<§tool_calls>\n<§invoke name=\"f\">\n</§invoke>\n</§tool_calls>$", "|c\n|f({})"},
    {"a call without a block", kChat, "c\n\n<§invoke name=\"f\">\n</§invoke>$", "|c|f({})"},
    {"a call in reasoning", kThink, "r\n\n<§tool_calls>\n<§invoke name=\"f\">\n</§invoke>\n</§tool_calls>$", "r||f({})"},
    {"reasoning goes on after a call", kThink, "r<§invoke name=\"f\"></§invoke>\n</§tool_calls>\ns</think>c", "r\ns|c|f({})"},
    {"text after the block", kChat, "c\n\n<§tool_calls>\n<§invoke name=\"f\">\n</§invoke>\n</§tool_calls>\nmore$", "|c\nmore|f({})"},
    {"blank after the block", kChat, "c\n\n<§tool_calls>\n<§invoke name=\"f\">\n</§invoke>\n</§tool_calls>\n\n$", "|c|f({})"},
    {"text between calls", kChat, "<§tool_calls>\n<§invoke name=\"f\">\n</§invoke>\nand\n<§invoke name=\"g\">\n</§invoke>\n</§tool_calls>$",
     "|\nand|f({})g({})"},
    {"two blocks", kChat, "<§tool_calls><§invoke name=\"f\"></§invoke></§tool_calls>\n<§tool_calls><§invoke name=\"g\"></§invoke></§tool_calls>",
     "||f({})g({})"},
    {"empty block", kChat, "c\n\n<§tool_calls>\n</§tool_calls>$", "|c|"},
    {"block without calls is text", kChat, "c\n\n<§tool_calls> hello</§tool_calls>$", "|c\n\n<｜DSML｜tool_calls> hello</｜DSML｜tool_calls>|"},
    {"block cut before a call is text", kChat, "c\n\n<§tool_calls>\n<§inv", "|c\n\n<｜DSML｜tool_calls>\n<｜DSML｜inv|"},
    {"invoke without name is text", kChat, "c\n<§invoke>x</§invoke>$", "|c\n<｜DSML｜invoke>x</｜DSML｜invoke>|"},
    {"invoke with empty name is text", kChat, "<§invoke name=\"\">", "|<｜DSML｜invoke name=\"\">|"},
    {"invoke cut in its name is text", kChat, "c\n\n<§tool_calls>\n<§invoke name=\"get", "|c\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get|"},
    {"spaces in tags", kChat, "<§invoke  name=\"f\" >\n<§parameter  name=\"a\"  string=\"true\" >x</§parameter></§invoke>", "||f({\"a\": \"x\"})"},
    {"cut after the name", kChat, "<§invoke name=\"f\">", "||f({})!"},
    {"cut in a parameter tag", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" str", "||f({})!"},
    {"cut in a parameter's name", kChat, "<§invoke name=\"f\">\n<§parameter name=\"ab", "||f({})!"},
    {"cut in a string", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"true\">Par", "||f({\"a\": \"Par\"})!"},
    {"cut in a closing tag", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"true\">Par</§para", "||f({\"a\": \"Par\"})!"},
    {"a lone < is text", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"true\">Par<", "||f({\"a\": \"Par<\"})!"},
    {"cut in JSON", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\">{\"n", "||f({\"a\": \"{\\\"n\"})!"},
    {"cut in the call's closing tag", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\">1</§parameter>\n</§inv", "||f({\"a\": 1})!"},
    {"unclosed parameter", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"true\">x</§invoke>\n</§tool_calls>$", "||f({\"a\": \"x\"})"},
    {"unclosed JSON parameter", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\">1</§invoke>\nbye$", "|\nbye|f({\"a\": 1})"},
    {"a closing tag of calls inside a value", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"true\">x</§invoke>y</§parameter></§invoke>",
     "||f({\"a\": \"x</｜DSML｜invoke>y\"})"},
    {"unclosed call before the block's end", kChat,
     "<§tool_calls>\n<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\">1</§parameter>\n</§tool_calls>\nbye", "|\nbye|f({\"a\": 1})"},
    {"unclosed call before a call", kChat, "<§invoke name=\"f\">\n<§invoke name=\"g\">\n</§invoke>", "||f({})g({})"},
    {"JSON that is none", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\">Paris</§parameter></§invoke>", "||f({\"a\": \"Paris\"})"},
    {"NaN is no JSON", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\">NaN</§parameter></§invoke>", "||f({\"a\": \"NaN\"})"},
    {"empty JSON", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\"></§parameter></§invoke>", "||f({\"a\": \"\"})"},
    {"neither true nor false", kChat,
     "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"maybe\">3</§parameter><§parameter name=\"b\">x y</§parameter></§invoke>",
     "||f({\"a\": 3, \"b\": \"x y\"})"},
    {"numbers keep their digits", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\">123456789012345678901234567890</§parameter></§invoke>",
     "||f({\"a\": 123456789012345678901234567890})"},
    {"quotes in a parameter's name", kChat, "<§invoke name=\"f\">\n<§parameter name=\"a\"b\" string=\"true\">x</§parameter></§invoke>",
     "||f({\"a\\\"b\": \"x\"})"},
    {"JSON object for parameters", kChat, "<§invoke name=\"f\">\n{\"city\": \"Paris\", \"n\": 1.50}\n</§invoke>", "||f({\"city\": \"Paris\", \"n\": 1.50})"},
    {"other text in a call", kChat, "a<§invoke name=\"f\">\nwell\n<§parameter name=\"a\" string=\"false\">1</§parameter>\n</§invoke>", "|awell|f({\"a\": 1})"},
    {"a malformed parameter's text stays", kChat, "<§invoke name=\"f\">\n<§parameter>x</§parameter>\n</§invoke>", "|>x|f({})"},
    {"a malformed parameter at the end", kChat, "<§invoke name=\"f\">\n<§parameter key=\"k\">lost?", "|key=\"k\">lost?|f({})!"},
    {"a name twice", kChat,
     "<§invoke name=\"f\">\n<§parameter name=\"a\" string=\"false\">1</§parameter>\n<§parameter name=\"a\" string=\"false\">2</§parameter>\n</§invoke>",
     "||f({\"a\": 1, \"a\": 2})"},
    {"invalid bytes", kChat, "a\xFF\xE4\xBD", "|a\uFFFD\uFFFD|"},
    {"end token cut by nothing after a call", kChat, "<§invoke name=\"f\"></§invoke><｜end", "|<｜end|f({})"},
};

TEST(CompletionParser, tolerant_cases) {
  for (const Case& c : kCases) EXPECT_EQ(print(parse_completion(marked(c.text), c.mode, kMarkup)), c.expected) << c.why;
}

TEST(CompletionParser, every_split_gives_the_same) {
  for (const Case& c : kCases) {
    const std::string text = marked(c.text);
    std::vector<size_t> every_byte;
    for (size_t i = 1; i < text.size(); ++i) {
      EXPECT_EQ(print(parse_in_pieces(text, c.mode, {i})), c.expected) << c.why << ", split at " << i;
      every_byte.push_back(i);
    }
    EXPECT_EQ(print(parse_in_pieces(text, c.mode, every_byte)), c.expected) << c.why << ", byte by byte";
  }
}

// The cases cut anywhere: still the same for every split, and always whole JSON.
TEST(CompletionParser, cut_answers_are_the_same_for_every_split) {
  for (const Case& c : kCases) {
    const std::string text = marked(c.text);
    for (size_t size = 0; size < text.size(); size += 3) {
      const std::string cut = text.substr(0, size);
      std::vector<size_t> every_byte;
      for (size_t i = 1; i < size; ++i) every_byte.push_back(i);
      EXPECT_EQ(print(parse_in_pieces(cut, c.mode, every_byte)), print(parse_completion(cut, c.mode, kMarkup))) << c.why << ", cut at " << size;
    }
  }
}

// Text streams out as it comes: only what may be markup waits.
TEST(CompletionParser, text_does_not_wait) {
  CompletionParser parser(kMarkup, kThink);
  using Kind = CompletionEvent::Kind;
  const auto feed = [&](const char* text) {
    std::string out;
    for (const CompletionEvent& event : parser.feed(marked(text))) {
      out += event.kind == Kind::kReasoning           ? "r:"
             : event.kind == Kind::kContent           ? "c:"
             : event.kind == Kind::kToolCallStart     ? "s:"
             : event.kind == Kind::kToolCallArguments ? "a:"
                                                      : "e:";
      out += event.text + ";";
    }
    return out;
  };
  EXPECT_EQ(feed("one"), "r:one;");
  EXPECT_EQ(feed(" <"), "r: ;");
  EXPECT_EQ(feed("b>\n"), "r:<b>;");
  EXPECT_EQ(feed("x</thi"), "r:\nx;");
  EXPECT_EQ(feed("nk>yes"), "c:yes;");
  EXPECT_EQ(feed("\n\n<§tool_calls>\n<§invoke name=\"f"), "");
  EXPECT_EQ(feed("\">\n<§parameter name=\"a\" string=\"true\">"), "s:f;a:{\"a\": \";");
  EXPECT_EQ(feed("line\n"), "a:line\\n;");
  EXPECT_EQ(feed("\"q\" </§"), "a:\\\"q\\\" ;");
  EXPECT_EQ(feed("parameter>\n<§parameter name=\"b\" string=\"false\">[1"), "a:\", \"b\": ;");
  EXPECT_EQ(feed(", 2]</§parameter>"), "a:[1, 2];");
  EXPECT_EQ(feed("\n</§invoke>"), "a:};e:;");
  EXPECT_EQ(feed("\n</§tool_calls>$"), "");
  EXPECT_TRUE(parser.finish().empty());
  EXPECT_TRUE(parser.saw_eos());
}

TEST(CompletionParser, strict_refusals) {
  const std::string head = "<§tool_calls>\n<§invoke name=\"f\">\n", tail = "</§invoke>\n</§tool_calls>$";
  const std::string good = "\n\n" + head + "<§parameter name=\"a\" string=\"false\">1</§parameter>\n" + tail;
  EXPECT_TRUE(parse_completion_strict(marked(good), kChat, kMarkup).ok());
  const std::string bad[] = {
      "c",
      "c$ ",
      "c$$",
      "\n" + head + tail,
      good + "x",
      "\n\n" + head + "<§parameter name=\"a\" string=\"false\">x</§parameter>\n" + tail,
      "\n\n" + head + "<§parameter name=\"a\" string=\"false\">NaN</§parameter>\n" + tail,
      "\n\n" + head + "<§parameter name=\"a\">1</§parameter>\n" + tail,
      "\n\n" + head + "<§parameter name=\"a\" string=\"true\">1</§parameter>" + tail,
      "\n\n" + head + "<§parameter name=\"a\" string=\"true\">1</§parameter>\n<§parameter name=\"a\" string=\"true\">1</§parameter>\n" + tail,
      "\n\n" + head + "text" + tail,
      "\n\n<§tool_calls>\n<§invoke name=\"\">\n" + tail,
      "\n\n<§tool_calls>\n<§invoke>\n" + tail,
      "\n\n<§tool_calls>\n",
      "a<think>b$",
      "a§b$",
      "a<｜begin▁of▁sentence｜>b$",
      "a\xFF$",
  };
  for (const std::string& text : bad) EXPECT_FALSE(parse_completion_strict(marked(text), kChat, kMarkup).ok()) << text;
  EXPECT_FALSE(parse_completion_strict(marked("r$"), kThink, kMarkup).ok());
  EXPECT_FALSE(parse_completion_strict(marked("r" + good), kThink, kMarkup).ok());
  EXPECT_EQ(parse_completion_strict("abc", kChat, kMarkup).status().message(), "completion: expected the end token <｜end▁of▁sentence｜> at byte 0");
}

// Random answers in the exact form: both readings give back what was written.
TEST(CompletionParser, readings_agree_on_well_formed_answers) {
  std::mt19937 random(5);
  const char* fragments[] = {"a", "\n", "\n\n", "<", "</", "\"", " string=\"true\"", "｜", "{", "你", "\\", "<b>", "name=\"", ">", "parameter"};
  const auto text = [&](size_t most) {
    std::string out;
    for (size_t n = random() % (most + 1); n > 0; --n) out += fragments[random() % std::size(fragments)];
    return out;
  };
  size_t num_calls = 0;
  for (int round = 0; round < 3000; ++round) {
    const bool thinks = random() % 2 == 0;
    ParsedCompletion expected;
    if (thinks) expected.reasoning_content = text(6);
    expected.content = text(6);
    std::string answer = thinks ? expected.reasoning_content + "</think>" : "";
    answer += expected.content;
    const size_t calls = random() % 3;
    if (calls > 0) answer += "\n\n<§tool_calls>\n";
    for (size_t i = 0; i < calls; ++i, ++num_calls) {
      ParsedToolCall call{"f" + std::to_string(i), "{", true};
      answer += "<§invoke name=\"" + call.name + "\">\n";
      const size_t parameters = random() % 3;
      for (size_t k = 0; k < parameters; ++k) {
        const std::string name = std::to_string(k) + text(2), value = text(5);
        const bool is_string = random() % 2 == 0;
        const std::string json = python_json_string(value);
        answer += "<§parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") + "\">" + (is_string ? value : json) + "</§parameter>\n";
        call.arguments += (k > 0 ? ", " : "") + python_json_string(name) + ": " + json;
      }
      if (parameters == 0) answer += "\n";
      answer += "</§invoke>\n";
      call.arguments += "}";
      expected.tool_calls.push_back(call);
    }
    answer = marked(answer + (calls > 0 ? "</§tool_calls>$" : "$"));
    const ThinkingMode mode = thinks ? kThink : kChat;
    const auto strict = parse_completion_strict(answer, mode, kMarkup);
    ASSERT_TRUE(strict.ok()) << strict.status().message() << "\n" << answer;
    ASSERT_EQ(print(*strict), print(expected)) << answer;
    ASSERT_EQ(print(parse_completion(answer, mode, kMarkup)), print(expected)) << answer;
  }
  EXPECT_GT(num_calls, 1000u);
}

// Fed byte by byte, each of these makes some state wait over all of it. Looking at all that waits again for each byte would take
// 2 * 10^10 steps; done right, it takes a tenth of a second.
TEST(CompletionParser, long_waits_take_linear_time) {
  for (const char* begin :
       {"", "<§tool_calls>", "<§invoke ", "<§invoke name=\"", "<§invoke name=\"f\">", "<§invoke name=\"f\"></§invoke>", "<§invoke name=\"f\"><§parameter",
        "<§invoke name=\"f\"><§parameter name=\"", "<§invoke name=\"f\"><§parameter name=\"a\" string=\"false\">",
        "<§invoke name=\"f\"><§parameter name=\"a\" string=\"true\"></§invoke>"}) {
    for (const char* unit : {" ", "a", "$"}) {
      std::string text = marked(begin);
      while (text.size() < 200000) text += marked(unit);
      const auto start = std::chrono::steady_clock::now();
      CompletionParser parser(kMarkup, kChat);
      size_t out = 0;
      for (const char c : text) {
        for (const CompletionEvent& event : parser.feed(std::string_view(&c, 1))) out += event.text.size();
      }
      for (const CompletionEvent& event : parser.finish()) out += event.text.size();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      EXPECT_LT(seconds.count(), 10.0) << begin << unit;
      EXPECT_LE(out, 8 * text.size()) << begin << unit;  // what comes out is what went in, escaped at most
    }
  }
}

}  // namespace
}  // namespace dsv4
