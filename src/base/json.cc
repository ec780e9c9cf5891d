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

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> members;  // names seen in each open object
  std::string fault;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& value) {
    if (fault.empty() && static_cast<size_t>(depth) > kMaxDepth) fault = "nested deeper than " + std::to_string(kMaxDepth);
    if (event == Json::parse_event_t::object_start) members.emplace_back();
    if (event == Json::parse_event_t::object_end) members.pop_back();
    if (event == Json::parse_event_t::key && fault.empty() && !members.back().insert(value.get<std::string>()).second) {
      fault = "duplicate member \"" + value.get<std::string>() + "\"";
    }
    return fault.empty();
  };
  try {
    Json value = Json::parse(text, callback);
    if (!fault.empty()) return invalid_data(what + ": " + fault);
    return value;
  } catch (const Json::parse_error& error) {
    const size_t offset = error.byte > 0 ? error.byte - 1 : 0;
    return invalid_data(what + ": not valid JSON at " + place(text, offset));
  } catch (const Json::exception& error) {
    return invalid_data(what + ": not valid JSON: " + error.what());
  }
}

}  // namespace dsv4
