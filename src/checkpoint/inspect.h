// What a checkpoint is and costs, from its headers alone: the numbers behind `dsv4 inspect`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expected_tensors.h"

namespace dsv4 {

struct DTypeTotal {
  DType dtype = DType::kF32;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

struct GroupTotal {
  TensorGroup group = TensorGroup::kNorm;
  int64_t stored_bytes = 0;
  int64_t token_bytes = 0;  // read to decode one token of one sequence, without speculation
};

// Cache of one sequence in the fp8_ds_mla layout and the indexer's own; the unfinished windows of the compressors not included.
struct CacheCost {
  int64_t window_bytes_per_token = 0;     // all layers, until the window is full; then the ring is reused
  int64_t window_bytes = 0;               // a full window
  double compressed_bytes_per_token = 0;  // rows of 584 bytes every 4 or 128 tokens
  double indexer_bytes_per_token = 0;     // rows of 68 bytes every 4 tokens

  double growth_bytes_per_token() const { return compressed_bytes_per_token + indexer_bytes_per_token; }
};

struct ModelSummary {
  std::string model;
  std::string identity;
  ModelConfig config;
  int64_t num_tensors = 0;
  int64_t total_bytes = 0;  // all tensors, draft blocks included
  int64_t window_layers = 0, ratio4_layers = 0, ratio128_layers = 0, hash_layers = 0;
  std::vector<DTypeTotal> dtypes;  // those present
  std::vector<GroupTotal> groups;  // those present
  int64_t token_bytes = 0;         // sum over groups
  CacheCost cache;
  DraftInfo draft;
  std::vector<std::string> unsupported;
  std::vector<std::string> warnings;
};

inline constexpr int64_t kCacheRowBytes = 584;   // 448 E4M3 + 64 BF16 + 8 scale bytes
inline constexpr int64_t kIndexerRowBytes = 68;  // 128 E2M1 + 4 scale bytes

ModelSummary summarize(const Checkpoint& checkpoint);

CacheCost cache_cost(const ModelConfig& config);
// Cache of one sequence after `tokens` tokens.
int64_t cache_bytes_at(const ModelConfig& config, int64_t tokens);

std::string summary_to_text(const ModelSummary& summary);
std::string summary_to_json(const ModelSummary& summary);

}  // namespace dsv4
