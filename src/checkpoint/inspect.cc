#include "checkpoint/inspect.h"

#include <algorithm>
#include <array>
#include <map>

#include "checkpoint/safetensors.h"

namespace dsv4 {
namespace {

// The bytes of one tensor, `size` in all, that decoding one token must read: all, except where only chosen rows are touched.
// Routed experts are not asked here: their share is taken of the sum.
int64_t token_read_bytes(const ModelConfig& config, const ExpectedTensor& t, int64_t size) {
  const int64_t row_bytes = size / t.shape[0];
  const bool hash_routed = t.layer >= 0 && t.layer < config.num_hash_layers;
  switch (t.group) {
    case TensorGroup::kEmbedding: return row_bytes;
    case TensorGroup::kRouter:
      if (t.kind == TensorKind::kHashTable) return row_bytes;
      // The table names the experts, so only their rows of the gate are needed for the weights.
      return hash_routed ? config.num_experts_per_token * row_bytes : size;
    default: return t.kind == TensorKind::kPosition ? row_bytes : size;  // a token adds the position term of its place in the window
  }
}

}  // namespace

CacheCost cache_cost(const ModelConfig& config) {
  CacheCost cost;
  cost.window_bytes_per_token = config.num_layers * kCacheRowBytes;
  cost.window_bytes = cost.window_bytes_per_token * config.window_tokens;
  for (const int32_t ratio : config.compress_ratios) {
    if (ratio != 0) cost.compressed_bytes_per_token += static_cast<double>(kCacheRowBytes) / ratio;
    if (ratio == 4) cost.indexer_bytes_per_token += static_cast<double>(kIndexerRowBytes) / ratio;
  }
  return cost;
}

int64_t cache_bytes_at(const ModelConfig& config, int64_t tokens) {
  int64_t bytes = config.num_layers * kCacheRowBytes * std::min(tokens, config.window_tokens);
  for (const int32_t ratio : config.compress_ratios) {
    if (ratio != 0) bytes += tokens / ratio * (kCacheRowBytes + (ratio == 4 ? kIndexerRowBytes : 0));
  }
  return bytes;
}

ModelSummary summarize(const Checkpoint& checkpoint) {
  ModelSummary s;
  s.model = checkpoint.model();
  s.identity = checkpoint.identity();
  s.config = checkpoint.config();
  s.draft = checkpoint.draft();
  s.unsupported = checkpoint.unsupported();
  s.warnings = checkpoint.warnings();
  for (const int32_t ratio : s.config.compress_ratios) ++(ratio == 0 ? s.window_layers : ratio == 4 ? s.ratio4_layers : s.ratio128_layers);
  s.hash_layers = std::min(s.config.num_hash_layers, s.config.num_layers);

  std::map<DType, DTypeTotal> dtypes;
  std::array<GroupTotal, kNumTensorGroups> groups;
  for (int i = 0; i < kNumTensorGroups; ++i) groups[static_cast<size_t>(i)].group = static_cast<TensorGroup>(i);
  for (const TensorEntry& t : checkpoint.tensors()) {
    ++s.num_tensors;
    s.total_bytes += t.size_bytes;
    DTypeTotal& total = dtypes[t.dtype];
    total.dtype = t.dtype;
    ++total.tensors;
    total.bytes += t.size_bytes;
    if (is_draft_name(t.name)) groups[static_cast<size_t>(TensorGroup::kDraft)].stored_bytes += t.size_bytes;
  }
  for (const ExpectedTensor& t : expected_tensors(s.config)) {
    int64_t size = 0;
    DSV4_CHECK(tensor_size_bytes(t.dtype, t.shape, &size), "a validated configuration keeps tensor sizes small");
    GroupTotal& group = groups[static_cast<size_t>(t.group)];
    group.stored_bytes += size;
    if (t.group != TensorGroup::kRoutedExpert) group.token_bytes += token_read_bytes(s.config, t, size);
  }
  GroupTotal& routed = groups[static_cast<size_t>(TensorGroup::kRoutedExpert)];
  routed.token_bytes = routed.stored_bytes / s.config.num_experts * s.config.num_experts_per_token;
  for (const auto& [dtype, total] : dtypes) s.dtypes.push_back(total);
  for (const GroupTotal& group : groups) {
    if (group.stored_bytes == 0) continue;
    s.groups.push_back(group);
    s.token_bytes += group.token_bytes;
  }
  s.cache = cache_cost(s.config);
  return s;
}

}  // namespace dsv4
