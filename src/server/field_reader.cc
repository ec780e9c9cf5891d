#include "server/field_reader.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace dsv4 {

std::optional<double> number_of(const JsonValue& value) {
  if (!value.is(JsonKind::kNumber)) return std::nullopt;
  double out = 0;
  const char* end = value.text.data() + value.text.size();
  const auto [at, error] = std::from_chars(value.text.data(), end, out);
  if (error != std::errc() || at != end || !std::isfinite(out)) return std::nullopt;
  return out;
}

std::optional<int64_t> integer_of(const JsonValue& value) {
  if (!value.is(JsonKind::kNumber)) return std::nullopt;
  int64_t out = 0;
  const char* end = value.text.data() + value.text.size();
  if (const auto [at, error] = std::from_chars(value.text.data(), end, out); error == std::errc() && at == end) return out;
  const auto real = number_of(value);  // 1e3, 5.0
  if (!real || *real != std::floor(*real) || std::abs(*real) >= 9e18) return std::nullopt;
  return static_cast<int64_t>(*real);
}

FieldReader::FieldReader(const JsonValue& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is(JsonKind::kObject)) {
    fail(ApiError{
        .status = 400, .message = fmt::format("{} must be an object, it is {}", path_.empty() ? "the body" : path_, object.kind_name()), .param = path_});
  }
}

const JsonValue* FieldReader::value(std::string_view name) {
  known_.insert(std::string(name));
  const JsonValue* found = object_.find(name);
  return found != nullptr && found->is(JsonKind::kNull) ? nullptr : found;
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::fail(std::string_view name, const std::string& rule) {
  fail(ApiError{.status = 400, .message = full_name(name) + " " + rule, .param = full_name(name)});
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const JsonValue* v = value(name);
  if (v == nullptr) return std::nullopt;
  if (!v->is_bool()) return fail(name, fmt::format("must be a boolean, it is {}", v->kind_name())), std::nullopt;
  return v->is(JsonKind::kTrue);
}

std::optional<std::string> FieldReader::string(std::string_view name) {
  const JsonValue* v = value(name);
  if (v == nullptr) return std::nullopt;
  if (!v->is(JsonKind::kString)) return fail(name, fmt::format("must be a string, it is {}", v->kind_name())), std::nullopt;
  return v->text;
}

std::optional<int64_t> FieldReader::integer(std::string_view name, int64_t low, int64_t high) {
  const JsonValue* v = value(name);
  if (v == nullptr) return std::nullopt;
  const auto n = integer_of(*v);
  if (!n) return fail(name, fmt::format("must be an integer, it is {}", v->is(JsonKind::kNumber) ? v->text : v->kind_name())), std::nullopt;
  if (!(*n >= low && *n <= high)) return fail(name, fmt::format("is {}, it must be between {} and {}", v->text, low, high)), std::nullopt;
  return n;
}

std::optional<double> FieldReader::number(std::string_view name, double low, double high) {
  const JsonValue* v = value(name);
  if (v == nullptr) return std::nullopt;
  const auto n = number_of(*v);
  if (!n) return fail(name, fmt::format("must be a number, it is {}", v->is(JsonKind::kNumber) ? v->text : v->kind_name())), std::nullopt;
  if (!(*n >= low && *n <= high)) return fail(name, fmt::format("is {}, it must be between {:g} and {:g}", v->text, low, high)), std::nullopt;
  return n;
}

const JsonValue* FieldReader::object(std::string_view name) {
  const JsonValue* v = value(name);
  if (v != nullptr && !v->is(JsonKind::kObject)) return fail(name, fmt::format("must be an object, it is {}", v->kind_name())), nullptr;
  return v;
}

const JsonValue* FieldReader::array(std::string_view name) {
  const JsonValue* v = value(name);
  if (v != nullptr && !v->is(JsonKind::kArray)) return fail(name, fmt::format("must be an array, it is {}", v->kind_name())), nullptr;
  return v;
}

void FieldReader::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.insert(std::string(name));
}

void FieldReader::refuse(std::string_view name, const std::string& reason) {
  if (given(name)) fail(name, reason);
}

void FieldReader::finish() {
  for (const std::string& name : object_.names) {
    if (known_.count(name) == 0) {
      ApiError error{.status = 400, .message = fmt::format("unknown field \"{}\"", full_name(name)), .param = full_name(name), .code = "unknown_parameter"};
      return fail(std::move(error));
    }
  }
}

}  // namespace dsv4
