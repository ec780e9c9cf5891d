// Which requests a load test sends, and when: a pure function of its options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace dsv4 {

// Lengths and their shares: "64" (always), "64:0.7,1024:0.3", "10-50:1" (evenly from a range).
struct LengthMix {
  struct Part {
    int64_t low = 0, high = 0;
    double share = 1;
  };
  std::vector<Part> parts;
};
Result<LengthMix> parse_length_mix(const std::string& text, const std::string& flag);

struct LoadOptions {
  int64_t num_requests = 100;
  int64_t concurrency = 16;  // closed loop: so many streams, each sending its next request when the last one ended
  double rate = 0;           // > 0: open loop instead, so many requests a second at random times (Poisson)
  LengthMix prompt_tokens{{{64, 64, 1}}};
  LengthMix answer_tokens{{{32, 32, 1}}};
  int64_t shared_prefix_tokens = 0;  // all prompts begin with the same tokens
  double cancel_share = 0;           // of requests, that the client leaves in the middle
  int64_t vocab_size = 0;            // prompts are random token ids from 100 (or a tenth of a small vocabulary) up
  uint64_t seed = 1;
};

struct LoadRequest {
  double at_seconds = 0;  // open loop: after the start
  std::vector<int32_t> prompt;
  int64_t answer_tokens = 0;
  int64_t cancel_after = -1;  // chunks; -1 = not
};

std::vector<LoadRequest> plan_load(const LoadOptions& options);

}  // namespace dsv4
