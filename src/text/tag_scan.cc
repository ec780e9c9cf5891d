#include "text/tag_scan.h"

#include <algorithm>
#include <string>

namespace dsv4 {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

size_t space_at_front(std::string_view text) {
  size_t count = 0;
  while (count < text.size() && is_space(text[count])) ++count;
  return count;
}

bool is_blank(std::string_view text) { return space_at_front(text) == text.size(); }

std::string_view trim(std::string_view text) {
  text.remove_prefix(space_at_front(text));
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

size_t partial_marker(std::string_view text, std::span<const std::string_view> markers) {
  size_t longest = 0;
  for (const std::string_view marker : markers) {
    for (size_t size = std::min(text.size(), marker.size() - 1); size > longest; --size) {
      if (text.substr(text.size() - size) == marker.substr(0, size)) longest = size;
    }
  }
  return longest;
}

size_t newlines_before(std::string_view text, size_t end) {
  size_t count = 0;
  while (count < 2 && count < end && text[end - 1 - count] == '\n') ++count;
  return count;
}

TagPart read_attribute(std::string_view text, std::string_view name, size_t* at, std::string_view* value) {
  size_t i = *at;
  while (i < text.size() && is_space(text[i])) ++i;
  if (i == text.size()) return TagPart::kCutShort;
  if (i == *at) return TagPart::kMismatch;
  const std::string opening = std::string(name) + "=\"";
  const std::string_view here = text.substr(i, opening.size());
  if (here != opening) return i + here.size() == text.size() && opening.compare(0, here.size(), here) == 0 ? TagPart::kCutShort : TagPart::kMismatch;
  i += opening.size();
  const size_t end = text.find_first_of("\"<\n", i);
  if (end == kNone) return TagPart::kCutShort;
  if (text[end] != '"') return TagPart::kMismatch;
  *value = text.substr(i, end - i);
  *at = end + 1;
  return TagPart::kFound;
}

TagPart read_tag_end(std::string_view text, size_t* at) {
  size_t i = *at;
  while (i < text.size() && is_space(text[i])) ++i;
  if (i == text.size()) return TagPart::kCutShort;
  if (text[i] != '>') return TagPart::kMismatch;
  *at = i + 1;
  return TagPart::kFound;
}

}  // namespace dsv4
