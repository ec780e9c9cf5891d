#include "text/format_template.h"

#include <algorithm>

#include <fmt/format.h>

namespace dsv4 {

Result<FormatTemplate> FormatTemplate::compile(std::string_view text, const std::vector<std::string_view>& fields) {
  FormatTemplate compiled;
  std::string literal;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '{' && c != '}') {
      literal += c;
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == c) {
      literal += c;
      ++i;
      continue;
    }
    const size_t end = c == '{' ? text.find_first_of("{}", i + 1) : std::string_view::npos;
    if (end == std::string_view::npos || text[end] != '}') return invalid_data(fmt::format("unmatched '{}' at byte {}", c, i));
    const std::string name(text.substr(i + 1, end - i - 1));
    if (name.empty() || name.find_first_of("!:.[") != std::string::npos) {
      return unsupported(fmt::format("the field {{{}}} is not a plain name", name));
    }
    if (std::find(fields.begin(), fields.end(), name) == fields.end()) return invalid_data(fmt::format("unknown field {{{}}}", name));
    if (!literal.empty()) compiled.parts_.push_back({false, std::move(literal)});
    literal.clear();
    compiled.parts_.push_back({true, name});
    i = end;
  }
  if (!literal.empty()) compiled.parts_.push_back({false, std::move(literal)});
  return compiled;
}

bool FormatTemplate::has_field(std::string_view name) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) { return part.is_field && part.text == name; });
}

std::string FormatTemplate::render(std::initializer_list<std::pair<std::string_view, std::string_view>> values) const {
  std::string out;
  for (const Part& part : parts_) {
    if (!part.is_field) {
      out += part.text;
      continue;
    }
    const auto value = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == part.text; });
    DSV4_CHECK(value != values.end(), "a template's field has no value");
    out += value->second;
  }
  return out;
}

}  // namespace dsv4
