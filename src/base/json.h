// JSON through nlohmann::ordered_json (member order kept). Include this only from .cc files; headers use json_fwd.hpp.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/status.h"

namespace dsv4 {

using Json = nlohmann::ordered_json;

// Parses one JSON document. `what` names it in the error: "config.json: line 3, column 7: ...". Duplicate members, NaN,
// trailing text, invalid UTF-8 and nesting deeper than 200 are errors.
Result<Json> parse_json(std::string_view text, const std::string& what);

// The same, into an object type that looks members up in log time and lists them by name: for objects with thousands of
// members, where the order-keeping one takes quadratic time.
using SortedJson = nlohmann::json;
Result<SortedJson> parse_json_sorted(std::string_view text, const std::string& what);

}  // namespace dsv4
