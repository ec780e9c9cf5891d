// Cuts Python source into the tokens of its left-margin statements, as far as reading constants needs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4 {

struct PythonToken {
  enum class Kind {
    kName,    // identifiers and keywords
    kString,  // a string literal whose value is in `text`
    kOther,   // an operator, a number, a literal that has no plain text value (f"", b"", \N{...}): `text` is its source or reason
    kEnd,     // the end of a statement: a newline outside brackets, a semicolon
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// All tokens of the statements that begin at the left margin; indented lines are left out. Errors as read_python_constants.
Result<std::vector<PythonToken>> lex_python(std::string_view source, const std::string& name);

}  // namespace dsv4
