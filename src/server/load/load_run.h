// Sends a load plan to a server over HTTP and notes when what came back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/load/load_plan.h"

namespace dsv4 {

struct LoadResult {
  double sent_seconds = 0;            // after the start; in an open loop, when it should have been sent
  std::vector<double> chunk_seconds;  // when each chunk with a token came, after sent_seconds
  double end_seconds = 0;             // the same for the end
  int64_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
  std::string text;
  std::string finish;  // "length", "stop", "cancelled" (by this client), "error"
  int status = 0;      // HTTP
  std::string error;
};

struct LoadTarget {
  std::string url = "http://127.0.0.1:8080";
  std::string api_key;
  std::string model;  // empty = the server's first
};

struct ServerFacts {
  std::string model;
  int64_t vocab_size = 0, context_tokens = 0;
};
Result<ServerFacts> ask_server(const LoadTarget& target);

// Results in the order of `requests`. `progress` is called as requests end. One thread does all.
Result<std::vector<LoadResult>> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests, const LoadOptions& options,
                                         const std::function<void(size_t done)>& progress = nullptr);

// One request by itself.
LoadResult run_one(const LoadTarget& target, const LoadRequest& request);

}  // namespace dsv4
