// POST /v1/responses: OpenAI's newer API in its common subset. Nothing is stored: a conversation comes whole with each request.
#pragma once

#include "server/service.h"

namespace dsv4 {

struct ResponsesRequest {
  ChatSpec spec;
  JsonValue echo;  // the body, for the fields that a response repeats
};
ApiResult<ResponsesRequest> read_responses_request(const JsonValue& body, const ApiRules& rules);

HttpReply responses(const Service& service, const HttpRequest& request);

}  // namespace dsv4
