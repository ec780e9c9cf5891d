// The routes of the server, from parts that any StepEngine can fill: what tests and the program share.
#pragma once

#include <string>
#include <vector>

#include "server/http_types.h"
#include "server/metrics.h"
#include "server/service.h"

namespace dsv4 {

// `service` and `metrics` must outlive the routes.
std::vector<HttpRoute> make_routes(const Service& service, Metrics& metrics);

// The body of a refusal at `path`, in the form of that path's API.
std::string refusal_body(const std::string& path, int status, const std::string& message);

}  // namespace dsv4
