#include <gtest/gtest.h>

#include "text/format_template.h"
#include "text/python_constants.h"

namespace dsv4 {
namespace {

PythonConstants read(const std::string& source) {
  const Result<PythonConstants> constants = read_python_constants(source, "w.py");
  EXPECT_TRUE(constants.ok()) << constants.status().message();
  return constants.ok() ? *constants : PythonConstants{};
}

std::string value_of(const std::string& expression) {
  const PythonConstants constants = read("known = 'K'\nX = " + expression + "\n");
  const auto found = constants.strings.find("X");
  return found == constants.strings.end() ? "UNREADABLE" : found->second;
}

// Expected values are what Python 3.11 evaluates these expressions to.
TEST(PythonConstants, string_expressions) {
  const std::pair<const char*, std::string> cases[] = {
      {R"("a'b")", "a'b"},
      {R"('a"b')", "a\"b"},
      {R"("")", ""},
      {R"('' 'x')", "x"},
      {R"("a" "b" 'c')", "abc"},
      {R"(("a" "b"))", "ab"},
      {R"("a" + 'b' + known)", "abK"},
      {R"(known + "x")", "Kx"},
      {R"((known + ("a") + (("b"))))", "Kab"},
      {"(\n  'a'  # why\n  'b'\n)", "ab"},
      {"'a' \\\n  'b'", "ab"},
      {"'a\\\nb'", "ab"},
      {R"("\n\t\r\a\b\f\v\\\'\"")", "\n\t\r\a\b\f\v\\'\""},
      {R"("\x41\101\7\u4f60\U0001F642\0")", std::string("AA\a\xE4\xBD\xA0\xF0\x9F\x99\x82\0", 11)},
      {R"("\d\{\ ")", "\\d\\{\\ "},
      {R"(r"\n\"")", "\\n\\\""},
      {R"(u"x")", "x"},
      {R"(R'''a'b''')", "a'b"},
      {"\"\"\"\nline\n\\\nend \"q\" \"\"\"", "\nline\nend \"q\" "},
      {"'''a\r\nb\rc'''", "a\nb\nc"},
      {"'#' '｜DSML｜'", "#｜DSML｜"},
      {"'a';", "a"},
  };
  for (const auto& [expression, expected] : cases) EXPECT_EQ(value_of(expression), expected) << expression;
}

TEST(PythonConstants, other_expressions_are_not_guessed) {
  for (const char* expression : {"f'a'",      "b'a'",    "rb'a'",         "'a'.strip()",       "'a' * 2",     "'a' % 1",  "1",          "None",
                                 "unknown",   "('a',)",  "['a']",         "'a' if x else 'b'", "'a' +",       "()",       "('a' 'b'",   "'\\N{BULLET}'",
                                 "'\\ud83d'", "'\\xZZ'", "'\\U00110000'", "'a' f'b'",          "lambda: 'a'", "x := 'a'", "{'a': 'b'}", "known known"}) {
    const Result<PythonConstants> constants = read_python_constants(std::string("known = 'K'\nX = ") + expression + "\n", "w.py");
    if (constants.ok()) {
      EXPECT_EQ(constants->strings.count("X"), 0u) << expression;
    }
  }
  EXPECT_EQ(read("\n\nX = f'{a}'\n").unreadable.at("X"), "line 3: not a plain string expression");
}

TEST(PythonConstants, dicts_keep_order) {
  const PythonConstants constants =
      read("k = 'K'\nD: dict[str, str] = {\n  'b': 'x' + k, # c\n  'a': ('y'\n 'z'),\n  'b': 'w',\n}\nE = D\nF = {}\nG = ({'a': k})\n");
  const PythonConstants::Dict expected = {{"b", "w"}, {"a", "yz"}};
  EXPECT_EQ(constants.dicts.at("D"), expected);
  EXPECT_EQ(constants.dicts.at("E"), expected);
  EXPECT_EQ(constants.dicts.at("F"), PythonConstants::Dict{});
  EXPECT_EQ(constants.dicts.at("G"), (PythonConstants::Dict{{"a", "K"}}));
  for (const char* source :
       {"D = {'a': 1}", "D = {'a'}", "D = {'a': 'b' 'c': 'd'}", "D = {**E}", "D = {1: 'a'}", "D = {'a': {'b': 'c'}}", "D = {'a': 'b'}.copy()"}) {
    EXPECT_EQ(read(source).dicts.count("D"), 0u) << source;
    EXPECT_EQ(read(source).unreadable.count("D"), 1u) << source;
  }
}

TEST(PythonConstants, later_statements_win_and_untracked_changes_are_noticed) {
  EXPECT_EQ(read("X = 'a'\nX = 'b'\n").strings.at("X"), "b");
  EXPECT_EQ(read("X = 'a'; Y = X\n").strings.at("Y"), "a");
  EXPECT_EQ(read("X = {'a': 'b'}\nX = 'c'\n").dicts.count("X"), 0u);
  for (const char* change : {"X += 'b'", "X *= 2", "X['a'] = 'b'", "X, Y = 'b', 'c'", "Y, X = 'b', 'c'", "X = f()", "X = Y = 'b'"}) {
    const PythonConstants constants = read(std::string("X = 'a'\n") + change + "\n");
    EXPECT_EQ(constants.strings.count("X"), 0u) << change;
    EXPECT_EQ(constants.unreadable.count("X"), 1u) << change;
  }
  EXPECT_EQ(read("X = 'a'\nX == 'b'\nX.y\nX: str\n").strings.at("X"), "a");
}

// A file as checkpoints have it: imports, functions, classes and doc strings stand around the constants.
TEST(PythonConstants, code_is_skipped) {
  const PythonConstants constants = read(R"PY(#!/usr/bin/env python3
# -*- coding: utf-8 -*-
"""Doc string with = signs and 'quotes'.
X = "not this"
"""
from typing import Any, Dict, List, Optional, Union, Tuple
import json, re

X: str = "one"
Y: Dict[str, Union[str, int]] = {"k": X}
VALID = set(Y.keys())

def f(a: str = "x", *, b: Dict[str, Any] = {}) -> str:
    """Doc."""
    X = "inner"
    t = f"""{a!r} = {
        b}"""
    if a == "y":
        return '''X = "inner"
X = "at the margin, but inside a string"
'''
    return f'<{a}invoke name="{b}">\n' + (
"a line at the margin inside brackets"
    )

class C:
    X = "class"
    @property
    def g(self): return {"X": 1}

if __name__ == "__main__":
    X = "main"
for X_ in ["a"]: print(X_)
Z = X \
    + "!"
assert X != "two", "no"
)PY");
  EXPECT_EQ(constants.strings.at("X"), "one");
  EXPECT_EQ(constants.strings.at("Z"), "one!");
  EXPECT_EQ(constants.dicts.at("Y"), (PythonConstants::Dict{{"k", "one"}}));
  EXPECT_EQ(constants.unreadable.count("VALID"), 1u);
  EXPECT_EQ(constants.strings.size(), 2u);
}

TEST(PythonConstants, errors_name_the_line) {
  const std::pair<const char*, const char*> cases[] = {
      {"a = 'x'\nb = 'y\n", "w.py: line 2: a string is never closed"},
      {"\n'''\n\n", "w.py: line 2: a string is never closed"},
      {"a = (\n'x'\n", "w.py: line 1: a bracket is never closed"},
      {"a = 'x')\n", "w.py: line 1: ')' closes nothing"},
      {"'\\", "w.py: line 1: a string is never closed"},
      {"a = '\xFF'", "w.py: invalid UTF-8 at byte 5"},
  };
  for (const auto& [source, expected] : cases) {
    const Result<PythonConstants> constants = read_python_constants(source, "w.py");
    ASSERT_FALSE(constants.ok()) << source;
    EXPECT_EQ(constants.status().message(), expected);
  }
}

TEST(PythonConstants, growth_and_depth_are_bounded) {
  std::string source = "X = 'aaaaaaaaaaaaaaaa'\n";
  for (int i = 0; i < 60; ++i) source += "X = X + X\n";
  EXPECT_EQ(read(source).strings.count("X"), 0u);
  EXPECT_EQ(read("X = " + std::string(100000, '(') + "'a'" + std::string(100000, ')')).strings.count("X"), 0u);
}

TEST(FormatTemplate, fields_and_braces) {
  const Result<FormatTemplate> text = FormatTemplate::compile("{{{a}}} {b}{a}}}{{", {"a", "b"});
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->render({{"a", "{b}"}, {"b", "2"}}), "{{b}} 2{b}}{");  // values are not looked into
  EXPECT_TRUE(text->has_field("b"));
  EXPECT_FALSE(text->has_field("c"));
  EXPECT_EQ(FormatTemplate::compile("", {})->render({}), "");
}

TEST(FormatTemplate, refuses_other_fields) {
  const std::pair<const char*, const char*> cases[] = {
      {"a{", "unmatched '{' at byte 1"},
      {"a}b", "unmatched '}' at byte 1"},
      {"{a{b}}", "unmatched '{' at byte 0"},
      {"{c}", "unknown field {c}"},
      {"{}", "the field {} is not a plain name"},
      {"{a!r}", "the field {a!r} is not a plain name"},
      {"{a:>3}", "the field {a:>3} is not a plain name"},
      {"{a.b}", "the field {a.b} is not a plain name"},
      {"{a[0]}", "the field {a[0]} is not a plain name"},
  };
  for (const auto& [text, expected] : cases) {
    const Result<FormatTemplate> compiled = FormatTemplate::compile(text, {"a", "b"});
    ASSERT_FALSE(compiled.ok()) << text;
    EXPECT_EQ(compiled.status().message(), expected);
  }
}

}  // namespace
}  // namespace dsv4
