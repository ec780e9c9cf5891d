// Text of protocols, which is ASCII.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace dsv4 {

inline std::string ascii_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace dsv4
