// A JSON document as a plain tree that keeps what prompts need and a double cannot: member order and every number's own text.
// (nlohmann's tree turns integers above 2^64 into doubles, and its ordered object takes quadratic time on a vocabulary.)
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4 {

enum class JsonKind { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

struct JsonValue {
  JsonKind kind = JsonKind::kNull;
  std::string text;                // kString: its value in UTF-8; kNumber: the token as written, e.g. "1.50"
  std::vector<JsonValue> items;    // kArray: the items; kObject: the members' values
  std::vector<std::string> names;  // kObject: the members' names, as many as items

  bool is(JsonKind k) const { return kind == k; }
  bool is_bool() const { return kind == JsonKind::kTrue || kind == JsonKind::kFalse; }

  // The member of that name, or null when this is no object or has no such member. Linear in the number of members.
  const JsonValue* find(std::string_view name) const;

  // "null", "a boolean", "a number", ...: for error messages.
  std::string kind_name() const;
};

struct JsonReadOptions {
  bool nan_and_infinity = false;  // on: NaN, Infinity and -Infinity are numbers. Off: errors
  bool repeated_members = false;  // on: of members with one name the last value counts, at the first one's place. Off: an error
};

// What Python's json.loads reads.
constexpr JsonReadOptions kPythonJson{.nan_and_infinity = true, .repeated_members = true};

// Parses one document. Errors (kInvalidData) read "WHAT: line 3, column 7: RULE": malformed text, invalid UTF-8, a lone
// surrogate escape, nesting deeper than 200, trailing text.
Result<JsonValue> read_json(std::string_view text, const std::string& what, const JsonReadOptions& options = {});

// Is this one JSON document? Members may repeat.
bool is_json(std::string_view text);

}  // namespace dsv4
