#include <gtest/gtest.h>

#include "text/json_value.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

std::string reprint(const std::string& text, const JsonReadOptions& options = {}) {
  const Result<JsonValue> value = read_json(text, "in", options);
  return value.ok() ? to_python_json(*value) : "error: " + value.status().message();
}

TEST(PythonJson, separators_order_and_escapes) {
  EXPECT_EQ(reprint(R"( {"b":1,"a":[true,false,null,{}],"c":{"d":[]}} )"), R"({"b": 1, "a": [true, false, null, {}], "c": {"d": []}})");
  EXPECT_EQ(reprint(R"("\"\\\/\b\f\n\r\t\u0001\u001f\u007f\u00e9\u4f60\ud83d\ude42")"),
            "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7F\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x99\x82\"");
}

// Expected values printed by Python 3.11: json.dumps(json.loads(token)).
TEST(PythonJson, numbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"1.50", "1.5"},
      {"-3e2", "-300.0"},
      {"0.1", "0.1"},
      {"1e16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1e-5", "1e-05"},
      {"0.0001", "0.0001"},
      {"0.00012345", "0.00012345"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"1e400", "Infinity"},
      {"-1e400", "-Infinity"},
      {"1e-400", "0.0"},
      {"-0.0", "-0.0"},
      {"1E5", "100000.0"},
      {"100e-2", "1.0"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"2.5e-7", "2.5e-07"},
      {"123456.789e3", "123456789.0"},
      {"1e22", "1e+22"},
      {"1e23", "1e+23"},
      {"0.30000000000000004", "0.30000000000000004"},
      {"1e+2", "100.0"},
      {"12345678901234567890.5", "1.2345678901234567e+19"},
      {"12345678901234567890", "12345678901234567890"},
      {"-123456789012345678901234567890", "-123456789012345678901234567890"},
      {"-0", "0"},
      {"0", "0"},
      {"-7", "-7"},
      {"0.000e999999999999999999999", "0.0"},
      {"1e-999999999999999999999", "0.0"},
      {"1e999999999999999999999", "Infinity"},
  };
  for (const auto& [token, expected] : cases) EXPECT_EQ(reprint(token), expected) << token;
}

TEST(PythonJson, python_extensions_only_on_request) {
  EXPECT_EQ(reprint("[NaN, Infinity, -Infinity]", kPythonJson), "[NaN, Infinity, -Infinity]");
  EXPECT_EQ(reprint("NaN"), "error: in: line 1, column 1: not a JSON value");
  EXPECT_EQ(reprint(R"({"a":1,"b":2,"a":3})", kPythonJson), R"({"a": 3, "b": 2})");
  EXPECT_EQ(reprint(R"({"a":1,"b":2,"a":3})"), "error: in: line 1, column 14: duplicate member \"a\"");
}

TEST(JsonValue, duplicates_are_found_among_many_members) {
  std::string text = "{";
  for (int i = 0; i < 40; ++i) text += "\"m" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  EXPECT_NE(reprint(text + "\"m5\":0}").find("duplicate member \"m5\""), std::string::npos);
  EXPECT_NE(reprint(text + "\"m30\":0}").find("duplicate member \"m30\""), std::string::npos);
  const Result<JsonValue> last_wins = read_json(text + "\"m5\":99,\"m30\":[1]}", "in", kPythonJson);
  ASSERT_TRUE(last_wins.ok());
  EXPECT_EQ(last_wins->items.size(), 40u);
  EXPECT_EQ(last_wins->find("m5")->text, "99");
  EXPECT_EQ(last_wins->find("m30")->items.size(), 1u);
}

TEST(JsonValue, errors_name_the_place_and_the_rule) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "in: line 1, column 1: the text ends where a value belongs"},
      {"[1,\n 2,]", "in: line 2, column 4: not a JSON value"},
      {"{\"a\" 1}", "in: line 1, column 6: expected ':' after a member name"},
      {"{a:1}", "in: line 1, column 2: expected a member name in quotes"},
      {"[1 2]", "in: line 1, column 4: expected ',' or ']' in an array"},
      {"01", "in: line 1, column 1: a number begins with a surplus 0"},
      {"1.", "in: line 1, column 3: a digit must follow the decimal point"},
      {"1e", "in: line 1, column 3: a digit must follow the exponent sign"},
      {"-", "in: line 1, column 1: not a JSON value"},
      {"\"abc", "in: line 1, column 1: a string has no closing quote"},
      {"\"a\nb\"", "in: line 1, column 3: a control character in a string must be escaped"},
      {"\"\\x\"", "in: line 1, column 2: unknown escape in a string"},
      {"\"\\u12g4\"", "in: line 1, column 2: \\u needs four hexadecimal digits"},
      {"\"\\ud83d\"", "in: line 1, column 2: a surrogate escape stands alone"},
      {"\"\\ude42\"", "in: line 1, column 2: a surrogate escape stands alone"},
      {"1 2", "in: line 1, column 3: unexpected text after the value"},
      {"\"\xFF\"", "in: invalid UTF-8 at byte 1 (0xFF)"},
      {"tru", "in: line 1, column 1: not a JSON value"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(reprint(text), "error: " + expected);
  EXPECT_EQ(reprint(std::string(201, '[') + std::string(201, ']')).substr(0, 5), "[[[[[");
  EXPECT_NE(reprint(std::string(202, '[') + std::string(202, ']')).find("nested deeper than 200"), std::string::npos);
  EXPECT_NE(reprint(std::string(1 << 20, '[')).find("nested deeper than 200"), std::string::npos);
}

// What is printed reads back to the same print.
TEST(PythonJson, printing_is_idempotent) {
  for (const char* text : {R"({"x":[1.50,2e-9,{"y":"\u0000 \\ \" é"}],"z":123456789012345678901234567890})", "[]", "-0.0", "\"\""}) {
    const std::string once = reprint(text);
    EXPECT_EQ(reprint(once), once);
  }
}

}  // namespace
}  // namespace dsv4
