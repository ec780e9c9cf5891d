// ModelConfig: the sizes and constants of a DeepSeek V4 checkpoint, from its config.json (names there in quotes).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/fault_list.h"

namespace dsv4 {

struct ModelConfig {
  int64_t hidden_dim = 0;                   // "hidden_size", D
  int64_t num_layers = 0;                   // "num_hidden_layers"
  int64_t vocab_size = 0;                   // "vocab_size"
  int64_t num_heads = 0;                    // "num_attention_heads"
  int64_t head_dim = 0;                     // "head_dim": 512; one kv row serves as key and value of every head
  int64_t rope_head_dim = 0;                // "qk_rope_head_dim": 64; rotated entries at the end of a head
  int64_t q_lora_rank = 0;                  // "q_lora_rank"
  int64_t o_lora_rank = 0;                  // "o_lora_rank": rows per group of wo_a
  int64_t o_groups = 0;                     // "o_groups"
  int64_t window_tokens = 0;                // "sliding_window"
  std::vector<int32_t> compress_ratios;     // "compress_ratios" cut to num_layers; each 0, 4 or 128
  int64_t index_num_heads = 0;              // "index_n_heads"
  int64_t index_head_dim = 0;               // "index_head_dim": 128
  int64_t index_topk = 0;                   // "index_topk"
  int64_t num_experts = 0;                  // "n_routed_experts"
  int64_t num_experts_per_token = 0;        // "num_experts_per_tok"
  int64_t num_shared_experts = 0;           // "n_shared_experts": 1
  int64_t expert_ffn_dim = 0;               // "moe_intermediate_size"
  int64_t num_hash_layers = 0;              // "num_hash_layers": first layers route by token id
  float routed_scaling_factor = 1;          // "routed_scaling_factor"
  float swiglu_limit = 0;                   // "swiglu_limit"
  int64_t hc_mult = 4;                      // "hc_mult": residual streams
  float hc_eps = 1e-6f;                     // "hc_eps"
  int64_t hc_sinkhorn_iters = 20;           // "hc_sinkhorn_iters"
  float rms_norm_eps = 1e-6f;               // "rms_norm_eps"
  double rope_theta = 10000;                // "rope_theta": layers without a compressor
  double compress_rope_theta = 160000;      // "compress_rope_theta": layers with one (YaRN below)
  double yarn_factor = 16;                  // "rope_scaling.factor"
  int64_t yarn_original_positions = 65536;  // "rope_scaling.original_max_position_embeddings"
  double yarn_beta_fast = 32;               // "rope_scaling.beta_fast"
  double yarn_beta_slow = 1;                // "rope_scaling.beta_slow"
  int64_t max_positions = 0;                // "max_position_embeddings"
  int32_t bos_token_id = 0;                 // "bos_token_id"
  int32_t eos_token_id = 1;                 // "eos_token_id"
  // DSpark draft blocks (0731 checkpoints), 0 or empty where config.json has none; see draft.h.
  int64_t dspark_block_size = 0;                 // "dspark_block_size": rows drafted at once
  int64_t dspark_noise_token_id = 0;             // "dspark_noise_token_id": input of every draft row but the first
  std::vector<int32_t> dspark_target_layer_ids;  // "dspark_target_layer_ids": layers whose streams feed the drafts

  bool layer_has_compressor(int64_t layer) const { return compress_ratios[static_cast<size_t>(layer)] != 0; }
  bool layer_has_indexer(int64_t layer) const { return compress_ratios[static_cast<size_t>(layer)] == 4; }
};

// Parses and validates config.json text; all rules that fail are listed in one Status (one line each, first line names `what`):
// kInvalidData when the file breaks its own rules, else kUnsupported when this engine would not run such a model.
Result<ModelConfig> parse_model_config(const std::string& json_text, const std::string& what);

// The two halves of the above. Reads config.json text; every rule that fails is added to `faults`, prefixed with `what`. The
// result is to be used only when none was added. Unknown keys are ignored.
ModelConfig read_model_config(const std::string& json_text, const std::string& what, FaultList* faults, std::vector<std::string>* unsupported);

// The same model with its first `num_layers` layers only (-1 or more than it has: unchanged).
ModelConfig with_first_layers(ModelConfig config, int64_t num_layers);

// The config.json text that parses back to `config` (for make-model and synthetic checkpoints).
std::string model_config_to_json(const ModelConfig& config);

}  // namespace dsv4
