// Figures of a load test, as JSON, as a table, and as a picture.
#pragma once

#include <string>
#include <vector>

#include "server/load/load_plan.h"
#include "server/load/load_run.h"

namespace dsv4 {

struct Quantiles {
  double p50 = 0, p95 = 0, p99 = 0, max = 0;
  size_t count = 0;
};
Quantiles quantiles_of(std::vector<double> values);

struct LoadGoals {  // a request within them counts as good; 0 = no goal
  double first_token_seconds = 0;
  double per_token_seconds = 0;
};

struct LoadSummary {
  size_t requests = 0, completed = 0, cancelled = 0, failed = 0, good = 0;
  double seconds = 0;
  double prompt_tokens_per_second = 0, answer_tokens_per_second = 0, requests_per_second = 0;
  double good_per_second = 0;
  int64_t cached_tokens = 0;
  Quantiles first_token, per_token, gap, request;  // seconds; completed requests
  std::vector<std::string> errors;                 // distinct, at most 10
};
LoadSummary summarize(const std::vector<LoadResult>& results, const LoadGoals& goals);

std::string report_json(const LoadSummary& summary, const LoadOptions& options, const LoadTarget& target, const ServerFacts& facts);
std::string report_text(const LoadSummary& summary);
// Shares of requests (and of gaps) below each latency, an SVG with a logarithmic axis.
std::string report_svg(const std::vector<LoadResult>& results);

}  // namespace dsv4
