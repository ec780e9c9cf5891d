// Reads string constants out of a Python source file. Nothing is executed.
//
// Read are statements at the left margin of the form
//     NAME = EXPR        NAME: ANNOTATION = EXPR
// where EXPR is a string, a dict of strings, or a parenthesised, "+"-joined or implicitly joined combination of string literals
// and names read earlier. Literals: single or triple quotes, prefixes r and u, all escapes but \N{...}. A later assignment
// replaces an earlier one. Everything else (imports, functions, classes, other expressions, indented lines, comments) is skipped.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4 {

struct PythonConstants {
  using Dict = std::vector<std::pair<std::string, std::string>>;  // in source order; keys are unique

  std::map<std::string, std::string> strings;
  std::map<std::string, Dict> dicts;
  // Names assigned at the left margin whose (last) value is neither: why, e.g. "line 12: not a string expression".
  std::map<std::string, std::string> unreadable;
};

// Errors (kInvalidData) read "NAME: line N: RULE": invalid UTF-8, an unterminated string, an unclosed bracket.
Result<PythonConstants> read_python_constants(std::string_view source, const std::string& name);

}  // namespace dsv4
