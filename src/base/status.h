// Errors as values. The outside world (files, requests, configuration, memory, unsupported combinations) reports through
// Status / Result<T>; our own bugs go through DSV4_CHECK (check.h). The library never prints, exits or throws across rooms.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace dsv4 {

// What kind of trouble, for exit codes and HTTP statuses. The message is for people: it names the thing, the rule, the value.
enum class StatusCode {
  kOk,
  kInvalidArgument,  // a flag, request field or option is wrong (exit 2, HTTP 400)
  kInvalidData,      // a file's or message's content breaks its format (exit 2, HTTP 400)
  kNotFound,         // a file, model, tensor or id does not exist (exit 2, HTTP 404)
  kUnsupported,      // valid, but this build, device or model cannot do it (exit 2, HTTP 400)
  kResourceLimit,    // memory, blocks, queue or context is exhausted (exit 1, HTTP 429/400)
  kCancelled,        // the caller asked to stop
  kNumerical,        // a non-finite or out-of-range value was found (exit 1, HTTP 500)
  kDevice,           // a device or rank failed (exit 1, HTTP 500)
  kIo,               // the operating system refused a read or write (exit 1)
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with "context: " before its message; ok stays ok.
  Status with_context(const std::string& context) const { return ok() ? *this : Status(code_, context + ": " + message_); }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return {}; }
inline Status invalid_argument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status invalid_data(std::string m) { return {StatusCode::kInvalidData, std::move(m)}; }
inline Status not_found(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status resource_limit(std::string m) { return {StatusCode::kResourceLimit, std::move(m)}; }
inline Status cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status numerical_error(std::string m) { return {StatusCode::kNumerical, std::move(m)}; }
inline Status device_error(std::string m) { return {StatusCode::kDevice, std::move(m)}; }
inline Status io_error(std::string m) { return {StatusCode::kIo, std::move(m)}; }

// A value or the Status that explains its absence. value() on an error is a bug (DSV4_CHECK).
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { DSV4_CHECK(!status_.ok(), "a Result built from a Status needs an error"); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& checked() {
    DSV4_CHECK(value_.has_value(), status_.message().c_str());
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

#define DSV4_CONCAT_INNER(a, b) a##b
#define DSV4_CONCAT(a, b) DSV4_CONCAT_INNER(a, b)

// Returns the Status of `expr` from the enclosing function when it is an error.
#define DSV4_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                 \
    if (::dsv4::Status dsv4_status_ = (expr); !dsv4_status_.ok()) return dsv4_status_; \
  } while (false)

// DSV4_ASSIGN_OR_RETURN(auto x, make_x()): declares x, or returns make_x()'s Status.
#define DSV4_ASSIGN_OR_RETURN(lhs, expr) DSV4_ASSIGN_OR_RETURN_INNER(DSV4_CONCAT(dsv4_result_, __LINE__), lhs, expr)
#define DSV4_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = std::move(tmp).value()

}  // namespace dsv4
