// One token's attention, computed again on the host in double from the query the device made and the cache rows it may see:
// what "attn.o" must be. Catches a reader of the wrong layout, a stale length, a forgotten sink, a wrong choice of rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "verify/cache_reader.h"

namespace dsv4 {

struct AttentionProblem {
  const ModelConfig& config;
  int64_t layer = 0;
  int64_t position = 0;
  std::span<const float> q;       // [heads * head_dim], as "attn.q" gives it
  std::span<const int32_t> topk;  // ratio 4: the row's choice
  std::span<const float> sink;    // [heads]
  std::vector<int64_t> heads;     // which to compute
};

struct AttentionHead {
  int64_t head = 0;
  std::vector<float> o;   // [head_dim], rotated back
  double sink_share = 0;  // probability that goes to the sink
  double largest_logit = 0;
  std::string fault;  // "" or the first logit or probability that is not finite
};

// Errors: those of reading the cache.
Result<std::vector<AttentionHead>> attend(CacheReader& cache, const AttentionProblem& problem);

}  // namespace dsv4
