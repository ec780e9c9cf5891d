#include "checkpoint/expected_tensors.h"

#include <gtest/gtest.h>

#include <map>

#include "checkpoint/safetensors.h"
#include "checkpoint/synthetic.h"

namespace dsv4 {
namespace {

std::map<std::string, std::string> table_of(const std::vector<ExpectedTensor>& tensors) {
  std::map<std::string, std::string> table;
  for (const ExpectedTensor& t : tensors) EXPECT_TRUE(table.emplace(t.name, describe_tensor(t.dtype, t.shape)).second) << t.name;
  return table;
}

// Every distinct shape of V4-Flash, written out by hand from the published headers.
TEST(ExpectedTensors, flash_has_the_published_shapes) {
  const ModelConfig config = synthetic_config("synthetic:flash").value();
  const auto table = table_of(expected_tensors(config));
  const std::map<std::string, std::string> published = {
      {"embed.weight", "BF16 [129280, 4096]"},
      {"head.weight", "BF16 [129280, 4096]"},
      {"norm.weight", "BF16 [4096]"},
      {"hc_head_fn", "F32 [4, 16384]"},
      {"hc_head_base", "F32 [4]"},
      {"hc_head_scale", "F32 [1]"},
      {"layers.0.attn_norm.weight", "BF16 [4096]"},
      {"layers.0.ffn_norm.weight", "BF16 [4096]"},
      {"layers.0.hc_attn_fn", "F32 [24, 16384]"},
      {"layers.0.hc_ffn_base", "F32 [24]"},
      {"layers.0.hc_ffn_scale", "F32 [3]"},
      {"layers.0.attn.wq_a.weight", "F8_E4M3 [1024, 4096]"},
      {"layers.0.attn.wq_a.scale", "F8_E8M0 [8, 32]"},
      {"layers.0.attn.wq_b.weight", "F8_E4M3 [32768, 1024]"},
      {"layers.0.attn.wkv.weight", "F8_E4M3 [512, 4096]"},
      {"layers.0.attn.wo_a.weight", "F8_E4M3 [8192, 4096]"},
      {"layers.0.attn.wo_a.scale", "F8_E8M0 [64, 32]"},
      {"layers.0.attn.wo_b.weight", "F8_E4M3 [4096, 8192]"},
      {"layers.0.attn.q_norm.weight", "BF16 [1024]"},
      {"layers.0.attn.kv_norm.weight", "BF16 [512]"},
      {"layers.0.attn.attn_sink", "F32 [64]"},
      {"layers.2.attn.compressor.wkv.weight", "BF16 [1024, 4096]"},
      {"layers.2.attn.compressor.wgate.weight", "BF16 [1024, 4096]"},
      {"layers.2.attn.compressor.ape", "F32 [4, 1024]"},
      {"layers.2.attn.compressor.norm.weight", "BF16 [512]"},
      {"layers.3.attn.compressor.wkv.weight", "BF16 [512, 4096]"},
      {"layers.3.attn.compressor.ape", "F32 [128, 512]"},
      {"layers.2.attn.indexer.wq_b.weight", "F8_E4M3 [8192, 1024]"},
      {"layers.2.attn.indexer.weights_proj.weight", "BF16 [64, 4096]"},
      {"layers.2.attn.indexer.compressor.wkv.weight", "BF16 [256, 4096]"},
      {"layers.2.attn.indexer.compressor.ape", "F32 [4, 256]"},
      {"layers.2.attn.indexer.compressor.norm.weight", "BF16 [128]"},
      {"layers.2.ffn.gate.weight", "BF16 [256, 4096]"},
      {"layers.2.ffn.gate.tid2eid", "I64 [129280, 6]"},
      {"layers.3.ffn.gate.bias", "F32 [256]"},
      {"layers.42.ffn.experts.255.w1.weight", "I8 [2048, 2048]"},
      {"layers.42.ffn.experts.255.w1.scale", "F8_E8M0 [2048, 128]"},
      {"layers.42.ffn.experts.255.w2.weight", "I8 [4096, 1024]"},
      {"layers.42.ffn.experts.255.w2.scale", "F8_E8M0 [4096, 64]"},
      {"layers.42.ffn.experts.255.w3.weight", "I8 [2048, 2048]"},
      {"layers.42.ffn.shared_experts.w1.weight", "F8_E4M3 [2048, 4096]"},
      {"layers.42.ffn.shared_experts.w2.weight", "F8_E4M3 [4096, 2048]"},
      {"layers.42.ffn.shared_experts.w2.scale", "F8_E8M0 [32, 16]"},
  };
  for (const auto& [name, shape] : published) EXPECT_EQ(table.count(name) != 0 ? table.at(name) : "absent", shape) << name;
  for (const char* absent : {"layers.0.attn.compressor.ape", "layers.3.attn.indexer.wq_b.weight", "layers.2.ffn.gate.bias", "layers.3.ffn.gate.tid2eid",
                             "layers.43.attn_norm.weight", "layers.0.ffn.experts.256.w1.weight"}) {
    EXPECT_EQ(table.count(absent), 0u) << absent;
  }
}

TEST(ExpectedTensors, fp8_grids_round_up) {
  ModelConfig config = synthetic_config("synthetic:tiny").value();
  config.hidden_dim = 160;
  const auto table = table_of(expected_tensors(config));
  EXPECT_EQ(table.at("layers.0.attn.wq_a.scale"), "F8_E8M0 [1, 2]");
  EXPECT_EQ(table.at("layers.0.attn.wo_b.scale"), "F8_E8M0 [2, 4]");
  EXPECT_EQ(table.at("layers.0.ffn.experts.0.w1.scale"), "F8_E8M0 [128, 5]");
}

TEST(ExpectedTensors, dspark_blocks) {
  ModelConfig config = synthetic_config("synthetic:flash").value();
  config.dspark_target_layer_ids = {1, 20, 40};
  const auto table = table_of(expected_dspark_tensors(config, 3, 256));
  EXPECT_EQ(table.at("mtp.0.main_proj.weight"), "F8_E4M3 [4096, 12288]");
  EXPECT_EQ(table.at("mtp.0.main_proj.scale"), "F8_E8M0 [32, 96]");
  EXPECT_EQ(table.at("mtp.2.markov_head.markov_w1.weight"), "BF16 [129280, 256]");
  EXPECT_EQ(table.at("mtp.2.confidence_head.proj.weight"), "BF16 [1, 4352]");
  EXPECT_EQ(table.at("mtp.2.hc_head_fn"), "F32 [4, 16384]");
  EXPECT_EQ(table.at("mtp.1.ffn.gate.bias"), "F32 [256]");
  EXPECT_EQ(table.count("mtp.1.main_proj.weight"), 0u);
  EXPECT_EQ(table.count("mtp.1.norm.weight"), 0u);
  for (const ExpectedTensor& t : expected_dspark_tensors(config, 1, 256)) EXPECT_EQ(t.group, TensorGroup::kDraft);
}

}  // namespace
}  // namespace dsv4
