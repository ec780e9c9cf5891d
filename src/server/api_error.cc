#include "server/api_error.h"

#include <cmath>

#include "base/json.h"

namespace dsv4 {
namespace {

const char* openai_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

ApiError api_error(const Status& status) {
  ApiError out;
  out.message = status.message();
  switch (status.code()) {
    case StatusCode::kNotFound: out.status = 404; break;
    case StatusCode::kResourceLimit:
    case StatusCode::kInvalidArgument:
    case StatusCode::kInvalidData:
    case StatusCode::kUnsupported: out.status = 400; break;
    case StatusCode::kCancelled: out.status = 503; break;
    default: out.status = 500; break;
  }
  return out;
}

std::string error_body(const ApiError& error, ApiStyle style) {
  Json body;
  if (style == ApiStyle::kAnthropic) {
    body["type"] = "error";
    body["error"] = {{"type", anthropic_type(error.status)}, {"message", error.message}};
  } else {
    Json& e = body["error"];
    e["message"] = error.message;
    e["type"] = openai_type(error.status);
    e["param"] = error.param.empty() ? Json() : Json(error.param);
    e["code"] = error.code.empty() ? Json() : Json(error.code);
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpReply error_reply(const ApiError& error, ApiStyle style) {
  HttpReply reply;
  reply.status = error.status;
  reply.body = error_body(error, style);
  if (error.retry_after_seconds > 0) reply.headers.push_back({"Retry-After", std::to_string(static_cast<int64_t>(std::ceil(error.retry_after_seconds)))});
  return reply;
}

}  // namespace dsv4
