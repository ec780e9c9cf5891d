// JSON of replies as text. Include only from .cc files.
#pragma once

#include <string>

#include "base/json.h"

namespace dsv4 {

// One line; bytes that are no UTF-8 become U+FFFD.
inline std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

inline std::string sse_data(const Json& json) { return "data: " + to_text(json) + "\n\n"; }
inline std::string sse_event(const std::string& name, const Json& json) { return "event: " + name + "\ndata: " + to_text(json) + "\n\n"; }

}  // namespace dsv4
