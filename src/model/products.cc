#include "model/products.h"

#include <algorithm>

namespace dsv4 {

std::vector<ModelProduct> model_products(const ModelConfig& c) {
  const auto with_ratio = [&](int32_t ratio) { return static_cast<int64_t>(std::count(c.compress_ratios.begin(), c.compress_ratios.end(), ratio)); };
  const int64_t all = c.num_layers, ratio4 = with_ratio(4), ratio128 = with_ratio(128), d = c.hidden_dim;
  constexpr auto kFp8 = WeightFormat::kFp8Block, kBf16 = WeightFormat::kBF16, kMx = WeightFormat::kMxfp4;
  constexpr auto kRound = ActivationRounding::kE4M3, kNone = ActivationRounding::kNone;
  std::vector<ModelProduct> out = {
      {"attn_in", "wq_a", all, c.q_lora_rank, d, kFp8, kRound},
      {"attn_in", "wkv", all, c.head_dim, d, kFp8, kRound},
      {"attn_in", "compressor.wkv, .wgate (ratio 4)", ratio4, 2 * c.head_dim, d, kBf16, kRound},
      {"attn_in", "compressor.wkv, .wgate (ratio 128)", ratio128, c.head_dim, d, kBf16, kRound},
      {"attn_in", "indexer.compressor.wkv, .wgate", ratio4, 2 * c.index_head_dim, d, kBf16, kRound},
      {"attn_in", "indexer.weights_proj", ratio4, c.index_num_heads, d, kBf16, kRound},
      {"wq_b", "wq_b", all, c.num_heads * c.head_dim, c.q_lora_rank, kFp8, kRound},
      {"wq_b", "indexer.wq_b", ratio4, c.index_num_heads * c.index_head_dim, c.q_lora_rank, kFp8, kRound},
      {"wo_a", "wo_a", all, c.o_groups * c.o_lora_rank, c.num_heads * c.head_dim / c.o_groups, kFp8, kNone, c.o_groups},
      {"wo_b", "wo_b", all, d, c.o_groups * c.o_lora_rank, kFp8, kRound},
      {"ffn_in", "gate", all, c.num_experts, d, kBf16, kRound},
      {"ffn_in", "shared_experts.w1, .w3", all, c.expert_ffn_dim, d, kFp8, kRound},
      {"shared_w2", "shared_experts.w2", all, d, c.expert_ffn_dim, kFp8, kRound},
      {"moe_experts", "experts.w1, .w3", all, c.expert_ffn_dim, d, kMx, kRound, 1, c.num_experts},
      {"moe_experts", "experts.w2", all, d, c.expert_ffn_dim, kMx, kRound, 1, c.num_experts},
      {"lm_head", "head", 0, c.vocab_size, d, kBf16, kNone},
  };
  std::erase_if(out, [](const ModelProduct& p) { return p.layers == 0 && p.call != "lm_head"; });
  return out;
}

}  // namespace dsv4
