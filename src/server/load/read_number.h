// A number that is the whole text.
#pragma once

#include <charconv>
#include <string_view>

namespace dsv4 {

// `form`: what std::from_chars takes besides, as the base.
template <class Number, class... Form>
bool read_number(std::string_view text, Number* out, Form... form) {
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), *out, form...);
  return error == std::errc() && at == text.data() + text.size();
}

}  // namespace dsv4
