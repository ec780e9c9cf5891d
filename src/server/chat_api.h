// POST /v1/chat/completions.
#pragma once

#include "server/service.h"

namespace dsv4 {

HttpReply chat_completions(const Service& service, const HttpRequest& request);

}  // namespace dsv4
