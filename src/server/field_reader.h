// Reads the members of a request's object, each once and by name. The first fault is kept; what nobody asked for is a fault too.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "text/json_value.h"

namespace dsv4 {

class FieldReader {
 public:
  // `path` stands before the member's name in errors: "" or "stream_options".
  explicit FieldReader(const JsonValue& object, std::string path = "");

  // The member, or null when it is absent or JSON null: everywhere in these APIs the two mean the same.
  const JsonValue* value(std::string_view name);
  bool given(std::string_view name) { return value(name) != nullptr; }

  std::optional<bool> boolean(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  // Inclusive ranges.
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  const JsonValue* object(std::string_view name);
  const JsonValue* array(std::string_view name);

  void ignore(std::initializer_list<std::string_view> names);     // accepted, without effect
  void refuse(std::string_view name, const std::string& reason);  // given: a fault
  void fail(std::string_view name, const std::string& rule);      // "NAME RULE"
  void fail(ApiError error);
  void finish();  // members that were never named are faults

  bool ok() const { return !error_; }
  const ApiError& error() const { return *error_; }
  std::string full_name(std::string_view name) const { return path_.empty() ? std::string(name) : path_ + "." + std::string(name); }

 private:
  const JsonValue& object_;
  const std::string path_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

// The number a JSON value holds; empty when it is none or not finite.
std::optional<double> number_of(const JsonValue& value);
std::optional<int64_t> integer_of(const JsonValue& value);  // integral and within 2^63

}  // namespace dsv4
