#include "text/python_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace dsv4 {
namespace {

// from_chars reports overflow and underflow alike; which one it is follows from the decimal exponent of the first nonzero digit.
double out_of_range_value(std::string_view token) {
  const bool negative = token.front() == '-';
  if (negative) token.remove_prefix(1);
  const size_t e = token.find_first_of("eE");
  const std::string_view digits = token.substr(0, e);
  int64_t exponent = 0;
  if (e != std::string_view::npos) {
    std::string_view text = token.substr(e + 1);
    const bool minus = text.front() == '-';
    if (text.front() == '-' || text.front() == '+') text.remove_prefix(1);
    constexpr int64_t kFar = int64_t{1} << 40;  // beyond any exponent that a text's digits could make up for
    for (const char c : text) exponent = exponent < kFar ? exponent * 10 + (c - '0') : kFar;
    if (minus) exponent = -exponent;
  }
  const size_t point = std::min(digits.find('.'), digits.size());
  const size_t first = digits.find_first_not_of("0.");
  exponent += static_cast<int64_t>(point) - static_cast<int64_t>(first);
  const double magnitude = exponent > 0 ? HUGE_VAL : 0.0;
  return negative ? -magnitude : magnitude;
}

// repr(float): the shortest digits that read back to the same value; fixed notation for 1e-4 <= |x| < 1e16, else an exponent of
// at least two digits.
std::string float_repr(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, end - buffer);
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 1) digits += text.substr(2, e - 2);
  int exponent = 0;
  const char* from = text.data() + e + 1 + (text[e + 1] == '+' ? 1 : 0);
  std::from_chars(from, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out += "0." + std::string(-exponent - 1, '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out += digits + std::string(whole - digits.size(), '0') + ".0";
  return out += digits.substr(0, whole) + "." + digits.substr(whole);
}

void append_value(const JsonValue& value, std::string* out) {
  switch (value.kind) {
    case JsonKind::kNull: *out += "null"; return;
    case JsonKind::kFalse: *out += "false"; return;
    case JsonKind::kTrue: *out += "true"; return;
    case JsonKind::kNumber: *out += python_number(value.text); return;
    case JsonKind::kString: *out += python_json_string(value.text); return;
    case JsonKind::kArray:
      *out += '[';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) *out += ", ";
        append_value(value.items[i], out);
      }
      *out += ']';
      return;
    case JsonKind::kObject:
      *out += '{';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) *out += ", ";
        *out += python_json_string(value.names[i]) + ": ";
        append_value(value.items[i], out);
      }
      *out += '}';
      return;
  }
}

}  // namespace

std::string python_number(std::string_view token) {
  if (token == "-0") return "0";
  if (token.find_first_not_of("-0123456789") == std::string_view::npos) return std::string(token);
  if (token.find_first_of("NI") != std::string_view::npos) return std::string(token);
  double value = 0;
  if (std::from_chars(token.data(), token.data() + token.size(), value).ec == std::errc::result_out_of_range) {
    value = out_of_range_value(token);
  }
  return float_repr(value);
}

void append_python_json_escaped(std::string_view text, std::string* out) {
  for (const char c : text) {
    switch (c) {
      case '"': *out += "\\\""; break;
      case '\\': *out += "\\\\"; break;
      case '\n': *out += "\\n"; break;
      case '\r': *out += "\\r"; break;
      case '\t': *out += "\\t"; break;
      case '\b': *out += "\\b"; break;
      case '\f': *out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          *out += fmt::format("\\u{:04x}", static_cast<int>(c));
        else
          *out += c;
    }
  }
}

std::string python_json_string(std::string_view text) {
  std::string out = "\"";
  append_python_json_escaped(text, &out);
  return out += '"';
}

std::string to_python_json(const JsonValue& value) {
  std::string out;
  append_value(value, &out);
  return out;
}

}  // namespace dsv4
