// JSON as Python's json.dumps(value, ensure_ascii=False) writes it, byte for byte: the form that models were trained on.
#pragma once

#include <string>
#include <string_view>

#include "text/json_value.h"

namespace dsv4 {

// ", " and ": " separators, member order kept, integers as written, other numbers as repr(float(x)).
std::string to_python_json(const JsonValue& value);

// A string with its quotes: ", \ and control characters below U+0020 escaped, everything else as it is.
std::string python_json_string(std::string_view text);

// Appends the escaped inside of a string, without quotes. Escaping two halves gives the same bytes as escaping the whole.
void append_python_json_escaped(std::string_view text, std::string* out);

// A number token ("1.50", "-3e2", "12345678901234567890", "NaN") in Python's form ("1.5", "-300.0", the same, "NaN").
std::string python_number(std::string_view token);

}  // namespace dsv4
