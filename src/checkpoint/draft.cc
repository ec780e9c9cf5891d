#include "checkpoint/draft.h"

#include <algorithm>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/safetensors.h"

namespace dsv4 {
namespace {

constexpr std::string_view kPrefix = "mtp.";
constexpr int64_t kMaxBlocks = 16;

// S of "mtp.S.rest"; -1 for other names.
int64_t block_of(std::string_view name) {
  int64_t block = 0;
  size_t i = kPrefix.size();
  for (; i < name.size() && name[i] >= '0' && name[i] <= '9' && block <= kMaxBlocks; ++i) block = 10 * block + (name[i] - '0');
  return i > kPrefix.size() && i < name.size() && name[i] == '.' ? block : -1;
}

void check_dspark(const ModelConfig& config, const std::vector<TensorEntry>& sorted, DraftInfo* info) {
  FaultList problems;
  if (config.dspark_block_size == 0) problems.add("config.json: dspark_block_size is missing");
  if (config.dspark_target_layer_ids.empty()) problems.add("config.json: dspark_target_layer_ids is missing");
  for (const int32_t id : config.dspark_target_layer_ids) {
    if (id >= config.num_layers) {
      problems.add("config.json: dspark_target_layer_ids names layer " + std::to_string(id) + ", the model has " + std::to_string(config.num_layers));
    }
  }
  const std::string markov = "mtp." + std::to_string(info->num_blocks - 1) + ".markov_head.markov_w1.weight";
  const TensorEntry* w1 = find_tensor(sorted, markov);
  if (w1 != nullptr && w1->shape.size() == 2) info->markov_rank = w1->shape[1];
  if (problems.empty()) {
    for (const ExpectedTensor& want : expected_dspark_tensors(config, info->num_blocks, info->markov_rank)) {
      const TensorEntry* got = find_tensor(sorted, want.name);
      if (got == nullptr) {
        problems.add(want.name + ": missing, expected " + describe_tensor(want.dtype, want.shape));
      } else if (got->dtype != want.dtype || got->shape != want.shape) {
        problems.add(got->file + ": " + want.name + ": expected " + describe_tensor(want.dtype, want.shape) + ", found " +
                     describe_tensor(got->dtype, got->shape));
      }
    }
  }
  info->problems = problems.lines();
  if (problems.count() > problems.lines().size()) info->problems.push_back("and " + std::to_string(problems.count() - problems.lines().size()) + " more");
}

}  // namespace

const char* draft_kind_name(DraftKind kind) {
  switch (kind) {
    case DraftKind::kNone: return "none";
    case DraftKind::kMtp: return "MTP (April)";
    case DraftKind::kDSpark: return "DSpark (0731)";
  }
  return "?";
}

bool is_draft_name(std::string_view name) { return name.substr(0, kPrefix.size()) == kPrefix; }

DraftInfo detect_draft(const ModelConfig& config, const std::vector<TensorEntry>& sorted) {
  DraftInfo info;
  bool any = false, april = false, dspark = false;
  for (const TensorEntry& t : sorted) {
    if (!is_draft_name(t.name)) continue;
    any = true;
    info.num_blocks = std::max(info.num_blocks, block_of(t.name) + 1);
    const std::string_view name = t.name;
    const size_t last = name.rfind('.');
    const std::string_view owner = name.substr(0, last);
    dspark = dspark || owner == "mtp.0.main_proj";
    for (const std::string_view part : {".e_proj", ".h_proj", ".enorm", ".hnorm"}) {
      april = april || (owner.size() > part.size() && owner.substr(owner.size() - part.size()) == part);
    }
  }
  if (!any) return info;
  if (april) {
    info.kind = DraftKind::kMtp;
    info.problems.push_back("April MTP layers are recognised and not used: the model runs without speculation");
  } else if (!dspark) {
    info.problems.push_back("mtp.* tensors are neither an April MTP layer (enorm, hnorm, e_proj, h_proj) nor DSpark blocks (main_proj)");
  } else {
    info.kind = DraftKind::kDSpark;
    if (info.num_blocks > kMaxBlocks) {
      info.problems.push_back("at most " + std::to_string(kMaxBlocks) + " draft blocks are read");
    } else {
      check_dspark(config, sorted, &info);
    }
  }
  return info;
}

}  // namespace dsv4
