// A Python format string with plain named fields: "{name}" is replaced, "{{" and "}}" are braces.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4 {

class FormatTemplate {
 public:
  // Errors (kInvalidData): an unmatched brace, a field not in `fields`; kUnsupported: an unnamed field, a conversion ("{x!r}") or
  // a format ("{x:>3}").
  static Result<FormatTemplate> compile(std::string_view text, const std::vector<std::string_view>& fields);

  bool has_field(std::string_view name) const;

  // Precondition: `values` names every field of the template. Values are inserted as they are, braces and all.
  std::string render(std::initializer_list<std::pair<std::string_view, std::string_view>> values) const;

 private:
  struct Part {
    bool is_field;
    std::string text;  // literal text, or the field's name
  };
  std::vector<Part> parts_;
};

}  // namespace dsv4
