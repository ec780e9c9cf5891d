#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/constraint/grammar_constraint.h"
#include "engine/constraint/json_schema.h"
#include "engine/constraint/number_grammar.h"
#include "engine/constraint/tool_grammar.h"
#include "text/completion_parser.h"
#include "text/prompt_encoder.h"
#include "text/utf8.h"

namespace dsv4 {
namespace {

bool accepts(Automaton& a, std::string_view text) {
  int32_t state = a.start();
  for (const char c : text) {
    state = a.step(state, static_cast<unsigned char>(c));
    if (state == Automaton::kDead) return false;
  }
  return a.accepts(state);
}

struct Compiled {
  JsonValue schema;
  std::shared_ptr<Grammar> grammar = std::make_shared<Grammar>();
  Status status;
  std::unique_ptr<Automaton> automaton;
};

Compiled compile(const std::string& schema) {
  Compiled out;
  out.schema = read_json(schema, "schema").value();
  auto root = JsonSchemaGrammar(*out.grammar, out.schema).json();
  out.status = root.status();
  if (root.ok()) out.status = out.grammar->check(*root);
  if (out.status.ok()) out.automaton = std::make_unique<Automaton>(out.grammar, *root);
  return out;
}

struct Case {
  const char* schema;
  std::vector<const char*> good, bad;
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    Compiled compiled = compile(c.schema);
    ASSERT_TRUE(compiled.status.ok()) << c.schema << ": " << compiled.status.message();
    for (const char* text : c.good) EXPECT_TRUE(accepts(*compiled.automaton, text)) << c.schema << " should take " << text;
    for (const char* text : c.bad) EXPECT_FALSE(accepts(*compiled.automaton, text)) << c.schema << " should refuse " << text;
  }
}

TEST(JsonSchema, any_json) {
  check({{"true",
          {"0", "-1.5e+10", "\"\"", "\"a\\n\\u00e9\\ud83d\\ude00\"", "\"é你😀\"", "true", "null", "[]", "[ ]", "{}", "[1, 2,3]", "{\"a\": [\n  1\n], \"b\":{}}",
           "[[[[]]]]"},
          {"",         "01",          "1.",
           ".5",       "+1",          "tru",
           "nul",      "\"",          "\"\n\"",
           "\"\\x\"",  "\"\\ud83d\"", "\"\\ude00\"",
           "\"\xff\"", "\"\xc3\"",    "\"\xed\xa0\x80\"",
           "[1,]",     "{\"a\"}",     "{a: 1}",
           "[1 2]",    "1 ",          "{} {}",
           "[1,  2]"}}});
}

TEST(JsonSchema, types_enums_and_constants) {
  check({
      {R"({"type": "boolean"})", {"true", "false"}, {"null", "0", "\"true\""}},
      {R"({"type": ["string", "null"]})", {"\"x\"", "null"}, {"1"}},
      {R"({"enum": ["a", 1, null, {"b": [2]}]})", {"\"a\"", "1", "null", "{\"b\": [2]}"}, {"\"b\"", "2", "{\"b\":[2]}"}},
      {R"({"type": "string", "enum": ["a", 1]})", {"\"a\""}, {"1"}},
      {R"({"const": "quote\" and é"})", {"\"quote\\\" and é\""}, {"\"quote\""}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]})", {"12", "\"ab\"", "\"é你\""}, {"\"abc\"", "1.5"}},
      {R"({"oneOf": [{"type": "integer"}, {"type": "null"}]})", {"12", "null"}, {"true"}},
      {R"({"allOf": [{"type": "null"}], "title": "x"})", {"null"}, {"0"}},
  });
}

TEST(JsonSchema, objects) {
  check({
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}}, "required": ["b"]})",
       {"{\"a\": 1, \"b\": \"x\", \"c\": null}", "{\"b\":\"x\"}", "{\"a\":1,\"b\":\"\"}", "{\"b\": \"x\", \"c\": null}", "{\n  \"b\": \"x\"\n}"},
       {"{}", "{\"a\": 1}", "{\"b\": 1}", "{\"b\": \"x\", \"a\": 1}", "{\"b\": \"x\",}", "{\"b\": \"x\", \"d\": 1}", "{\"b\": \"x\" \"c\": null}",
        "{,\"b\": \"x\"}"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}})",
       {"{}", "{\"a\": 1}", "{\"a\": 1, \"b\": true}", "{\"aa\": true}", "{\"\": false, \"你\": true}"},
       {"{\"a\": true}", "{\"b\": 1}", "{\"\\u0061\": true}", "{\"b\": true, \"a\": 1}"}},
      {R"({"type": "object"})", {"{}", "{\"x\": [1]}"}, {"[]"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}", "{ }"}, {"{\"x\": 1}"}},
      {R"({"type": "object", "required": ["k"]})", {"{\"k\": 1}", "{\"k\": 1, \"z\": 2}"}, {"{}", "{\"z\": 2}"}},
  });
}

TEST(JsonSchema, arrays) {
  check({
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
       {"[1, 2]", "[1,2,3]", "[ 1, 2 ]"},
       {"[]", "[1]", "[1,2,3,4]", "[1,2,]", "[\"a\",1]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "maxItems": 1})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})",
       {"[]", "[1]", "[1, \"a\"]"},
       {"[\"a\"]", "[1, \"a\", 2]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 1})", {"[1]", "[1, null, null]"}, {"[]", "[null]"}},
      {R"({"type": "array"})", {"[]", "[1, \"a\", {}]"}, {"{}"}},
  });
}

TEST(JsonSchema, strings) {
  check({
      {R"({"type": "string", "minLength": 1, "maxLength": 2})", {"\"a\"", "\"\\n\\u0041\"", "\"😀😀\""}, {"\"\"", "\"abc\""}},
      {R"({"type": "string", "pattern": "^[a-z]+-[0-9]{2,3}$"})", {"\"ab-12\"", "\"a-123\""}, {"\"ab-1\"", "\"AB-12\"", "\"ab-1234\"", "\"\""}},
      {R"({"type": "string", "pattern": "b+"})", {"\"b\"", "\"abba\"", "\"x\\nb\""}, {"\"\"", "\"aaa\""}},
      {R"({"type": "string", "pattern": "^(?:yes|no|\"quoted\"|a\\\\b)$"})",
       {"\"yes\"", "\"no\"", "\"\\\"quoted\\\"\"", "\"a\\\\b\""},
       {"\"maybe\"", "\"\"quoted\"\""}},
      {R"({"type": "string", "pattern": "^\\w\\s[^\\d]\\u00e9.$"})", {"\"a béx\""}, {"\"a 1éx\"", "\"a bex\""}},
      {R"({"type": "string", "format": "date"})", {"\"2026-02-28\""}, {"\"2026-13-01\"", "\"x\""}},
      {R"({"type": "string", "format": "uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123\""}},
      {R"({"type": "string", "format": "email"})", {"\"a.b@example.org\""}, {"\"a@b\"", "\"@example.org\""}},
      {R"x({"type": "string", "pattern": "^(a[^\\s\\S]|b)$"})x", {"\"b\""}, {"\"a\"", "\"ab\""}},
      {R"({"type": "string", "format": "shoe-size"})", {"\"anything\""}, {"1"}},
  });
}

TEST(JsonSchema, references) {
  check({
      {R"({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/n"})",
       {"{\"v\": 1, \"next\": null}", "{\"v\": 1, \"next\": {\"v\": 2, \"next\": null}}"},
       {"{\"v\": 1}", "{\"v\": 1, \"next\": {}}"}},
      {R"({"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}})",
       {"{}", "{\"kids\": [{}, {\"kids\": []}]}"},
       {"{\"kids\": [1]}"}},
      {R"({"properties": {"a": {"$ref": "#/definitions/x~1y"}}, "definitions": {"x/y": {"const": 5}}})", {"{\"a\": 5}"}, {"{\"a\": 6}"}},
  });
}

TEST(JsonSchema, what_cannot_be_enforced_is_refused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 7}}})", "#/properties/a/multipleOf"},
      {R"({"not": {"type": "null"}})", "\"not\""},
      {R"({"type": "array", "uniqueItems": true})", "uniqueItems"},
      {R"({"if": {}, "then": {}})", "\"if\""},
      {R"({"type": "object", "patternProperties": {}})", "patternProperties"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "may both hold"},
      {R"({"allOf": [{"type": "object"}, {"type": "object"}]})", "allOf"},
      {R"({"$ref": "https://example.org/x"})", "outside this schema"},
      {R"({"$ref": "#/nowhere"})", "not in this schema"},
      {R"({"$ref": "#"})", "refers to itself"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "refers to itself"},
      {R"x({"type": "string", "pattern": "(?=a)"})x", "look-ahead"},
      {R"({"type": "string", "pattern": "(a)\\1"})", "back reference"},
      {R"({"type": "string", "pattern": "["})", "\"]\" is missing"},
      {R"({"type": "string", "pattern": "a**"})", "two quantifiers"},
      {R"({"type": "string", "pattern": "a", "minLength": 2})", "length"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no value"},
      {R"({"type": "octopus"})", "no type"},
      {R"({"enum": []})", "enum"},
      {R"(false)", "no value"},
      {R"({"type": "object", "properties": {"a": false}, "required": ["a"]})", "no value"},
      {R"({"type": "object", "required": ["x"], "properties": {}})", "none of the properties"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", "minItems is above"},
      {R"({"type": "string", "maxLength": 100000000})", "maxLength"},
      {R"({"properties": 5})", "#/properties"},
  };
  for (const auto& [schema, message] : cases) {
    const Compiled compiled = compile(schema);
    EXPECT_FALSE(compiled.status.ok()) << schema;
    EXPECT_NE(compiled.status.message().find(message), std::string::npos) << schema << ": " << compiled.status.message();
  }
}

// Every bound pair of a grid against every number text of a grid.
TEST(NumberGrammar, bounds_hold_exactly) {
  const std::vector<std::string> bounds = {"-120.5", "-100", "-9.99", "-1", "-0.25", "0", "0.1", "0.999", "1", "5", "10", "12.34", "99", "100", "1005"};
  std::vector<std::string> texts;
  for (const std::string whole : {"0", "1", "2", "4", "5", "6", "9", "10", "11", "12", "13", "98", "99", "100", "101", "120", "999", "1004", "1005", "1006"}) {
    for (const std::string fraction : {"", ".0", ".1", ".25", ".3", ".34", ".340", ".341", ".5", ".9", ".99", ".999", ".9990", ".9991", ".00001"}) {
      texts.push_back(whole + fraction);
      texts.push_back("-" + whole + fraction);
    }
  }
  for (const bool exclusive : {false, true}) {
    for (const std::string& low : bounds) {
      for (const std::string& high : bounds) {
        for (const bool integer : {false, true}) {
          Grammar g;
          NumberRange range{read_bound(low, exclusive), read_bound(high, exclusive), integer ? 0 : 15};
          const auto node = number_grammar(g, range);
          const double l = std::stod(low), h = std::stod(high);
          const auto grammar = std::make_shared<Grammar>(g);
          std::unique_ptr<Automaton> a;
          if (node) a = std::make_unique<Automaton>(grammar, *node);
          for (const std::string& text : texts) {
            const double v = std::stod(text);
            bool expected = exclusive ? v > l && v < h : v >= l && v <= h;
            if (integer && text.find('.') != std::string::npos) expected = false;
            if (text[0] == '-' && v == 0) expected = false;  // "-0" is never offered within bounds
            ASSERT_EQ(a != nullptr && accepts(*a, text), expected)
                << text << " in " << low << ".." << high << (exclusive ? " exclusive" : "") << (integer ? " integer" : "");
          }
        }
      }
    }
  }
}

TEST(NumberGrammar, one_sided_and_exponents_of_bounds) {
  check({
      {R"({"type": "integer", "minimum": 18})", {"18", "19", "100", "99999"}, {"17", "-18", "1", "018"}},
      {R"({"type": "integer", "exclusiveMaximum": 0})", {"-1", "-100"}, {"0", "1"}},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", {"0", "0.5", "1", "1.0", "0.000001"}, {"1.1", "-0.5", "2", "1.01"}},
      {R"({"type": "number", "maximum": 1.5e2})", {"150", "149.99", "-1000"}, {"150.1", "151"}},
      {R"({"type": "number", "multipleOf": 0.01})", {"1", "1.25", "-3.1"}, {"1.255", "1e5"}},
      {R"({"type": "integer", "multipleOf": 1})", {"5"}, {"5.0"}},
  });
}

class WithTokenizer : public testing::Test {
 protected:
  static constexpr const char* kModel = "models/dsv4-tiny";
  Tokenizer tokenizer_ = Tokenizer::load("models/dsv4-tiny/tokenizer.json").value();
  std::mt19937 random_{5};

  // Draws tokens as a model that wants anything at all would: random logits under the mask. Ends at eos.
  std::vector<int32_t> draw(TokenConstraint& constraint, size_t vocab, size_t most) {
    std::vector<int32_t> out;
    std::uniform_real_distribution<float> uniform(0, 1);
    while (out.size() < most) {
      std::vector<float> logits(vocab);
      for (float& l : logits) l = uniform(random_);
      logits[1] = out.size() > 40 ? 2.0f : 0.0f;  // end when the grammar lets it
      for (const char* closing : {"}", "]", "\"", ">"}) {
        if (const auto id = tokenizer_.id_of(closing); id && out.size() > 20) logits[static_cast<size_t>(*id)] += 0.8f;
      }
      EXPECT_TRUE(constraint.mask(logits).ok());
      const auto best = std::max_element(logits.begin(), logits.end());
      if (!std::isfinite(*best)) {
        ADD_FAILURE() << "no token is possible after " << tokenizer_.decode(out).value();
        break;
      }
      const int32_t token = static_cast<int32_t>(best - logits.begin());
      EXPECT_TRUE(constraint.accept(token).ok());
      if (token == 1) return out;
      out.push_back(token);
    }
    finished_ = false;
    return out;
  }
  bool finished_ = true;
};

TEST_F(WithTokenizer, masks_agree_with_trying_every_token) {
  auto grammar = std::make_shared<Grammar>();
  const JsonValue schema =
      read_json(
          R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 130}}, "required": ["name", "age"]})",
          "s")
          .value();
  const GrammarNode root = JsonSchemaGrammar(*grammar, schema).json().value();
  const auto trie = std::make_shared<TokenTrie>(tokenizer_, std::vector<int32_t>());
  auto compiled = CompiledGrammar::create(grammar, root, trie).value();
  Automaton& a = compiled->automaton();
  int32_t state = a.start();
  const std::string text = "{\"name\": \"Zoë\", \"age\": 42}";
  for (size_t i = 0; i <= text.size(); ++i) {
    const auto& mask = compiled->allowed(state);
    for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
      int32_t s = tokenizer_.token_bytes(id).empty() || tokenizer_.is_added(id) ? Automaton::kDead : state;
      for (const char c : tokenizer_.token_bytes(id)) s = s < 0 ? s : a.step(s, static_cast<unsigned char>(c));
      ASSERT_EQ((mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0, s >= 0) << "token " << id << " after " << text.substr(0, i);
    }
    if (i < text.size()) state = a.step(state, static_cast<unsigned char>(text[i]));
    ASSERT_GE(state, 0);
  }
  EXPECT_TRUE(a.accepts(state));
}

TEST_F(WithTokenizer, whatever_is_drawn_is_valid) {
  const auto trie = std::make_shared<TokenTrie>(tokenizer_, std::vector<int32_t>());
  const std::string schema_text = R"({"type": "object", "properties": {
      "id": {"type": "integer", "minimum": 10, "maximum": 250}, "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
      "note": {"type": "string", "maxLength": 12}, "price": {"type": "number", "minimum": 0.5, "maximum": 99.5}, "flag": {"type": ["boolean", "null"]}},
      "required": ["id", "note", "price"], "additionalProperties": false})";
  const JsonValue schema = read_json(schema_text, "s").value();
  auto grammar = std::make_shared<Grammar>();
  const GrammarNode root = JsonSchemaGrammar(*grammar, schema).json().value();
  auto compiled = CompiledGrammar::create(grammar, root, trie).value();
  int complete = 0;
  for (int run = 0; run < 30; ++run) {
    auto constraint = make_grammar_constraint(compiled, tokenizer_, {.eos_token = 1});
    finished_ = true;
    const std::string text = tokenizer_.decode(draw(*constraint, 2560, 400)).value();
    if (!finished_) continue;
    ++complete;
    const auto json = read_json(text, "drawn");
    ASSERT_TRUE(json.ok()) << text;
    const double id = std::stod(json->find("id")->text), price = std::stod(json->find("price")->text);
    EXPECT_TRUE(id >= 10 && id <= 250) << text;
    EXPECT_TRUE(price >= 0.5 && price <= 99.5) << text;
    EXPECT_TRUE(json->find("note")->is(JsonKind::kString));
    for (const std::string& name : json->names) EXPECT_NE(schema.find("properties")->find(name), nullptr) << text;
    if (const JsonValue* tags = json->find("tags")) {
      EXPECT_LE(tags->items.size(), 3u);
      for (const JsonValue& tag : tags->items) EXPECT_TRUE(tag.text == "red" || tag.text == "green");
    }
  }
  EXPECT_GT(complete, 20);
}

TEST_F(WithTokenizer, too_many_readings_are_refused_in_time) {
  const auto trie = std::make_shared<TokenTrie>(tokenizer_, std::vector<int32_t>());
  const JsonValue schema = read_json(R"({"type": "string", "pattern": "^((a?){1000}){1000}$"})", "s").value();
  auto grammar = std::make_shared<Grammar>();
  const GrammarNode root = JsonSchemaGrammar(*grammar, schema).json().value();
  auto compiled = CompiledGrammar::create(grammar, root, trie);
  if (!compiled.ok()) {
    EXPECT_EQ(compiled.status().code(), StatusCode::kUnsupported);
    return;
  }
  auto constraint = make_grammar_constraint(*compiled, tokenizer_, {.eos_token = 1});  // the quote comes first, the trouble behind it
  Status status;
  for (int i = 0; i < 3 && status.ok(); ++i) {
    std::vector<float> logits(2560, 0.0f);
    status = constraint->mask(logits);
    if (!status.ok()) break;
    ASSERT_TRUE(constraint->accept(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())).ok());
  }
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
}

// Every string of the schema has a length: one without ends when the model writes its closing markup, which random tokens never do.
TEST_F(WithTokenizer, drawn_tool_calls_parse_strictly_and_follow_their_schema) {
  const ChatMarkup markup = PromptEncoder::load(kModel)->markup();
  const auto trie = std::make_shared<TokenTrie>(tokenizer_, std::vector<int32_t>{tokenizer_.id_of(markup.dsml).value()});
  const JsonValue weather =
      read_json(
          R"({"type": "object", "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
      "unit": {"enum": ["C", "F"]}, "when": {"type": ["string", "null"], "maxLength": 5}, "opts": {"type": "object", "properties": {"x": {"type": "boolean"}}}}, "required": ["city", "days"]})",
          "s")
          .value();
  auto grammar = std::make_shared<Grammar>();
  const GrammarNode root = tool_calls_grammar(*grammar, {{"get_weather", &weather}, {"ping", nullptr}}, true, markup).value();
  auto compiled = CompiledGrammar::create(grammar, root, trie).value();
  int complete = 0, weather_calls = 0;
  for (int run = 0; run < 30; ++run) {
    auto constraint = make_grammar_constraint(compiled, tokenizer_, {.eos_token = 1});
    finished_ = true;
    const std::string text = tokenizer_.decode(draw(*constraint, 2560, 600)).value();
    if (!finished_) continue;
    ++complete;
    const auto parsed = parse_completion_strict(text + markup.eos, ThinkingMode::kChat, markup);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message() << "\n" << text;
    EXPECT_EQ(parsed->content, "");
    ASSERT_GE(parsed->tool_calls.size(), 1u);
    for (const ParsedToolCall& call : parsed->tool_calls) {
      const auto arguments = read_json(call.arguments, "arguments");
      ASSERT_TRUE(arguments.ok()) << call.arguments;
      if (call.name == "ping") {
        EXPECT_EQ(call.arguments, "{}");
        continue;
      }
      ++weather_calls;
      ASSERT_EQ(call.name, "get_weather");
      ASSERT_TRUE(arguments->find("city") != nullptr && arguments->find("days") != nullptr) << call.arguments;
      EXPECT_TRUE(arguments->find("city")->is(JsonKind::kString));
      EXPECT_FALSE(arguments->find("city")->text.empty());
      const double days = std::stod(arguments->find("days")->text);
      EXPECT_TRUE(days >= 1 && days <= 9);
      if (const JsonValue* unit = arguments->find("unit")) {
        EXPECT_TRUE(unit->text == "C" || unit->text == "F");
      }
      for (const std::string& name : arguments->names) EXPECT_NE(weather.find("properties")->find(name), nullptr);
    }
  }
  EXPECT_GT(complete, 10);
  EXPECT_GT(weather_calls, 3);
}

TEST_F(WithTokenizer, thinking_is_free_and_cannot_end_the_answer) {
  auto grammar = std::make_shared<Grammar>();
  const JsonValue schema = read_json(R"({"const": "ok"})", "s").value();
  const GrammarNode root = JsonSchemaGrammar(*grammar, schema).json().value();
  auto compiled = CompiledGrammar::create(grammar, root, std::make_shared<TokenTrie>(tokenizer_, std::vector<int32_t>())).value();
  const int32_t end = tokenizer_.id_of("</think>").value();
  auto constraint = make_grammar_constraint(compiled, tokenizer_, {.eos_token = 1, .start_after = end});
  std::vector<float> logits(2560, 0.0f);
  ASSERT_TRUE(constraint->mask(logits).ok());
  EXPECT_TRUE(std::isinf(logits[1]));
  EXPECT_EQ(std::count_if(logits.begin(), logits.end(), [](float l) { return std::isinf(l); }), 1);
  ASSERT_TRUE(constraint->accept(100).ok());
  ASSERT_TRUE(constraint->accept(end).ok());
  EXPECT_EQ(tokenizer_.decode(draw(*constraint, 2560, 50)).value(), "\"ok\"");
  EXPECT_TRUE(finished_);
  EXPECT_FALSE(make_grammar_constraint(compiled, tokenizer_, {.eos_token = 1})->accept(100).ok());  // against the mask
}

TEST(TextGrammar, text_ends_at_the_first_end) {
  Grammar g;
  const GrammarNode root = text_up_to(g, "</｜x>");
  Automaton a(std::make_shared<Grammar>(g), root);
  for (const char* good : {"</｜x>", "abc</｜x>", "<</</｜</｜x>", "é<你</｜x>", "<//｜x></｜x>"}) EXPECT_TRUE(accepts(a, good)) << good;
  for (const char* bad : {"", "abc", "</｜x", "</｜x>a", "</｜x></｜x>", "\xff</｜x>"}) EXPECT_FALSE(accepts(a, bad)) << bad;
}

TEST(Grammar, code_points_as_utf8) {
  const Grammar::CodePoints sets[] = {{{0, 0x10FFFF}},    {{'a', 'f'}},          {{0x7F, 0x801}},      {{0xFFF, 0x1001}},
                                      {{0xD000, 0xE001}}, {{0x10000, 0x10FFFF}}, {{0x3FFFF, 0x40001}}, {{5, 5}, {0x20AC, 0x20AC}}};
  for (const auto& set : sets) {
    Grammar g;
    const GrammarNode root = g.code_point(set);
    Automaton a(std::make_shared<Grammar>(g), root);
    for (const uint32_t c :
         {0u,      5u,      0x61u,   0x66u,   0x67u,   0x7Fu,   0x80u,   0x7FFu,   0x800u,   0x801u,   0x802u,   0xFFEu,   0xFFFu,   0x1000u,
          0x1001u, 0x1002u, 0x20ACu, 0xD7FFu, 0xE000u, 0xE001u, 0xFFFFu, 0x10000u, 0x3FFFEu, 0x3FFFFu, 0x40000u, 0x40001u, 0x40002u, 0x10FFFFu}) {
      std::string text;
      append_utf8(c, &text);
      const bool within = std::any_of(set.begin(), set.end(), [&](const auto& r) { return c >= r.first && c <= r.second; });
      EXPECT_EQ(accepts(a, text), within) << std::hex << c;
    }
    for (const char* bad : {"\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\x80"}) EXPECT_FALSE(accepts(a, bad));
  }
}

}  // namespace
}  // namespace dsv4
