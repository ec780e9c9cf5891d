// Draft blocks ("mtp.*") of a checkpoint. The model runs without them; anything wrong with them only turns speculation off.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/tensor_entry.h"

namespace dsv4 {

enum class DraftKind : uint8_t {
  kNone,
  kMtp,     // April: one multi-token-prediction layer (enorm, hnorm, e_proj, h_proj); recognised, not used
  kDSpark,  // 0731: blocks that draft dspark_block_size tokens at once
};

struct DraftInfo {
  DraftKind kind = DraftKind::kNone;
  int64_t num_blocks = 0;             // counted from the tensors
  int64_t markov_rank = 0;            // DSpark: columns of markov_w1
  std::vector<std::string> problems;  // why these blocks cannot draft; empty = usable (kDSpark only)

  bool usable() const { return kind == DraftKind::kDSpark && problems.empty(); }
};

const char* draft_kind_name(DraftKind kind);  // "none", "MTP (April)", "DSpark (0731)"

// Looks at the "mtp." names among `sorted` (by name) and, for DSpark, checks them against the table of expected tensors.
DraftInfo detect_draft(const ModelConfig& config, const std::vector<TensorEntry>& sorted);

// A name inside the draft blocks.
bool is_draft_name(std::string_view name);

}  // namespace dsv4
