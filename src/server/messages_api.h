// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API in its common subset.
#pragma once

#include "server/service.h"

namespace dsv4 {

ApiResult<ChatSpec> read_messages_request(const JsonValue& body, const ApiRules& rules, bool needs_max_tokens);

HttpReply messages(const Service& service, const HttpRequest& request);
HttpReply count_message_tokens(const Service& service, const HttpRequest& request);

}  // namespace dsv4
