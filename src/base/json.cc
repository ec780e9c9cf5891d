#include "base/json.h"

#include <set>
#include <vector>

namespace dsv4 {
namespace {

constexpr size_t kMaxDepth = 200;  // recursion in the library's destructor and in our walkers stays far from the stack's end

// "line L, column C" of a byte offset (1-based, columns in bytes).
std::string place(std::string_view text, size_t offset) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

template <class AnyJson>
Result<AnyJson> parse(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> members;  // names seen in each open object
  std::string fault;
  const auto callback = [&](int depth, typename AnyJson::parse_event_t event, AnyJson& value) {
    if (fault.empty() && static_cast<size_t>(depth) > kMaxDepth) fault = "nested deeper than " + std::to_string(kMaxDepth);
    if (event == AnyJson::parse_event_t::object_start) members.emplace_back();
    if (event == AnyJson::parse_event_t::object_end) members.pop_back();
    if (event == AnyJson::parse_event_t::key && fault.empty() && !members.back().insert(value.template get<std::string>()).second) {
      fault = "duplicate member \"" + value.template get<std::string>() + "\"";
    }
    return fault.empty();
  };
  try {
    AnyJson value = AnyJson::parse(text, callback);
    if (!fault.empty()) return invalid_data(what + ": " + fault);
    return value;
  } catch (const typename AnyJson::parse_error& error) {
    const size_t offset = error.byte > 0 ? error.byte - 1 : 0;
    return invalid_data(what + ": not valid JSON at " + place(text, offset));
  } catch (const typename AnyJson::exception& error) {
    return invalid_data(what + ": not valid JSON: " + error.what());
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& what) { return parse<Json>(text, what); }

Result<SortedJson> parse_json_sorted(std::string_view text, const std::string& what) { return parse<SortedJson>(text, what); }

}  // namespace dsv4
