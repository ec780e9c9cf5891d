// What a client is told when a request fails, in the form its API uses.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "server/http_types.h"

namespace dsv4 {

enum class ApiStyle { kOpenAi, kAnthropic };

struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};          // the field, e.g. "tools[0].function"; empty = none
  std::string code = {};           // e.g. "context_length_exceeded"; empty = none
  double retry_after_seconds = 0;  // 0 = no Retry-After header
};

// The HTTP status a Status stands for when a request caused it.
ApiError api_error(const Status& status);

// {"error": {"message", "type", "param", "code"}}, or {"type": "error", "error": {"type", "message"}}.
std::string error_body(const ApiError& error, ApiStyle style);
HttpReply error_reply(const ApiError& error, ApiStyle style);

// A value or the error that explains its absence.
template <class T>
class ApiResult {
 public:
  ApiResult(T value) : value_(std::move(value)) {}
  ApiResult(ApiError error) : error_(std::move(error)) {}

  bool ok() const { return value_.has_value(); }
  const ApiError& error() const { return error_; }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  ApiError error_;
};

}  // namespace dsv4
