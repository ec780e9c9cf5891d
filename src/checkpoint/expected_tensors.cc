#include "checkpoint/expected_tensors.h"

#include <utility>

namespace dsv4 {
namespace {

constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Table {
 public:
  explicit Table(const ModelConfig& config) : c_(config) {}

  void embedding() { add("embed.weight", DType::kBF16, {c_.vocab_size, c_.hidden_dim}, TensorGroup::kEmbedding, TensorKind::kWeight, c_.hidden_dim); }

  void layer(int64_t index, int32_t ratio, bool hash_routed) {
    const std::string p = "layers." + std::to_string(index) + ".";
    layer_ = index;
    block(p, ratio, hash_routed);
    layer_ = -1;
  }

  // What follows the last layer: collapse of the streams, norm, head. The draft blocks have their own, without a head matrix.
  void collapse(const std::string& p) {
    norm(p + "norm.weight", c_.hidden_dim);
    mix(p + "hc_head", c_.hc_mult, 1);
  }
  void head() { bf16("head.weight", c_.vocab_size, c_.hidden_dim, TensorGroup::kHead); }

  void block(const std::string& p, int32_t ratio, bool hash_routed) {
    const int64_t m = c_.hc_mult;
    mix(p + "hc_attn", (2 + m) * m, 3);
    norm(p + "attn_norm.weight", c_.hidden_dim);
    attention(p + "attn.", ratio);
    mix(p + "hc_ffn", (2 + m) * m, 3);
    norm(p + "ffn_norm.weight", c_.hidden_dim);
    moe(p + "ffn.", hash_routed);
  }

  void norm(const std::string& name, int64_t size) { add(name, DType::kBF16, {size}, TensorGroup::kNorm, TensorKind::kNorm, 0); }

  void bf16(const std::string& name, int64_t n, int64_t k, TensorGroup group) { add(name, DType::kBF16, {n, k}, group, TensorKind::kWeight, k); }

  void fp8(const std::string& p, int64_t n, int64_t k, TensorGroup group) {
    add(p + ".weight", DType::kF8E4M3, {n, k}, group, TensorKind::kWeight, k);
    add(p + ".scale", DType::kF8E8M0, {div_up(n, kFp8WeightBlock), div_up(k, kFp8WeightBlock)}, group, TensorKind::kWeightScale, k);
    set_format(WeightFormat::kFp8Block);
  }

  // From here on every tensor belongs to the draft blocks, whatever its part there.
  void enter_draft() { draft_ = true; }

  std::vector<ExpectedTensor> take() { return std::move(out_); }

 private:
  void add(std::string name, DType dtype, std::vector<int64_t> shape, TensorGroup group, TensorKind kind, int64_t fan_in) {
    const WeightFormat format = dtype == DType::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF32;
    out_.push_back({std::move(name), dtype, std::move(shape), draft_ ? TensorGroup::kDraft : group, kind, format, fan_in, layer_});
  }

  void mxfp4(const std::string& p, int64_t n, int64_t k, TensorGroup group) {
    add(p + ".weight", DType::kI8, {n, k / 2}, group, TensorKind::kWeight, k);
    add(p + ".scale", DType::kF8E8M0, {n, k / kMxfp4Group}, group, TensorKind::kWeightScale, k);
    set_format(WeightFormat::kMxfp4);
  }

  // Of the weight and the scale just added.
  void set_format(WeightFormat format) {
    out_[out_.size() - 2].format = format;
    out_[out_.size() - 1].format = format;
  }

  void mix(const std::string& p, int64_t rows, int64_t gains) {
    const int64_t flat = c_.hc_mult * c_.hidden_dim;
    add(p + "_fn", DType::kF32, {rows, flat}, TensorGroup::kHyperConnection, TensorKind::kMixFn, flat);
    add(p + "_base", DType::kF32, {rows}, TensorGroup::kHyperConnection, TensorKind::kMixBase, 0);
    add(p + "_scale", DType::kF32, {gains}, TensorGroup::kHyperConnection, TensorKind::kMixScale, 0);
  }

  void attention(const std::string& p, int32_t ratio) {
    const TensorGroup group = TensorGroup::kAttention;
    fp8(p + "wq_a", c_.q_lora_rank, c_.hidden_dim, group);
    add(p + "q_norm.weight", DType::kBF16, {c_.q_lora_rank}, group, TensorKind::kNorm, 0);
    fp8(p + "wq_b", c_.num_heads * c_.head_dim, c_.q_lora_rank, group);
    fp8(p + "wkv", c_.head_dim, c_.hidden_dim, group);
    add(p + "kv_norm.weight", DType::kBF16, {c_.head_dim}, group, TensorKind::kNorm, 0);
    if (ratio != 0) compressor(p + "compressor.", ratio, c_.head_dim, TensorGroup::kCompressor);
    if (ratio == 4) {
      fp8(p + "indexer.wq_b", c_.index_num_heads * c_.index_head_dim, c_.q_lora_rank, TensorGroup::kIndexer);
      bf16(p + "indexer.weights_proj.weight", c_.index_num_heads, c_.hidden_dim, TensorGroup::kIndexer);
      compressor(p + "indexer.compressor.", ratio, c_.index_head_dim, TensorGroup::kIndexer);
    }
    add(p + "attn_sink", DType::kF32, {c_.num_heads}, group, TensorKind::kSink, 0);
    // One stack of o_groups matrices: a group reads its own heads only.
    fp8(p + "wo_a", c_.o_groups * c_.o_lora_rank, c_.num_heads / c_.o_groups * c_.head_dim, group);
    fp8(p + "wo_b", c_.hidden_dim, c_.o_groups * c_.o_lora_rank, group);
  }

  void compressor(const std::string& p, int32_t ratio, int64_t head_dim, TensorGroup group) {
    const int64_t width = ratio == 4 ? 2 * head_dim : head_dim;  // overlapping windows: one half per role
    bf16(p + "wkv.weight", width, c_.hidden_dim, group);
    bf16(p + "wgate.weight", width, c_.hidden_dim, group);
    add(p + "ape", DType::kF32, {ratio, width}, group, TensorKind::kPosition, 0);
    add(p + "norm.weight", DType::kBF16, {head_dim}, group, TensorKind::kNorm, 0);
  }

  void moe(const std::string& p, bool hash_routed) {
    bf16(p + "gate.weight", c_.num_experts, c_.hidden_dim, TensorGroup::kRouter);
    if (hash_routed) {
      add(p + "gate.tid2eid", DType::kI64, {c_.vocab_size, c_.num_experts_per_token}, TensorGroup::kRouter, TensorKind::kHashTable, 0);
    } else {
      add(p + "gate.bias", DType::kF32, {c_.num_experts}, TensorGroup::kRouter, TensorKind::kRouterBias, 0);
    }
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      const std::string q = p + "experts." + std::to_string(e) + ".";
      mxfp4(q + "w1", c_.expert_ffn_dim, c_.hidden_dim, TensorGroup::kRoutedExpert);
      mxfp4(q + "w2", c_.hidden_dim, c_.expert_ffn_dim, TensorGroup::kRoutedExpert);
      mxfp4(q + "w3", c_.expert_ffn_dim, c_.hidden_dim, TensorGroup::kRoutedExpert);
    }
    fp8(p + "shared_experts.w1", c_.expert_ffn_dim, c_.hidden_dim, TensorGroup::kSharedExpert);
    fp8(p + "shared_experts.w2", c_.hidden_dim, c_.expert_ffn_dim, TensorGroup::kSharedExpert);
    fp8(p + "shared_experts.w3", c_.expert_ffn_dim, c_.hidden_dim, TensorGroup::kSharedExpert);
  }

  const ModelConfig& c_;
  std::vector<ExpectedTensor> out_;
  int64_t layer_ = -1;
  bool draft_ = false;
};

}  // namespace

const char* tensor_group_name(TensorGroup group) {
  switch (group) {
    case TensorGroup::kEmbedding: return "embedding";
    case TensorGroup::kHead: return "head";
    case TensorGroup::kNorm: return "norms";
    case TensorGroup::kAttention: return "attention";
    case TensorGroup::kCompressor: return "compressors";
    case TensorGroup::kIndexer: return "indexer";
    case TensorGroup::kHyperConnection: return "mHC";
    case TensorGroup::kRouter: return "router";
    case TensorGroup::kRoutedExpert: return "routed experts";
    case TensorGroup::kSharedExpert: return "shared expert";
    case TensorGroup::kDraft: return "draft blocks";
  }
  return "?";
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  Table table(config);
  table.embedding();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    table.layer(layer, config.compress_ratios[static_cast<size_t>(layer)], layer < config.num_hash_layers);
  }
  table.collapse("");
  table.head();
  return table.take();
}

std::vector<ExpectedTensor> expected_dspark_tensors(const ModelConfig& config, int64_t num_blocks, int64_t markov_rank) {
  Table table(config);
  table.enter_draft();
  const TensorGroup group = TensorGroup::kDraft;
  for (int64_t s = 0; s < num_blocks; ++s) {
    const std::string p = "mtp." + std::to_string(s) + ".";
    if (s == 0) {
      const int64_t taps = static_cast<int64_t>(config.dspark_target_layer_ids.size());
      table.fp8(p + "main_proj", config.hidden_dim, taps * config.hidden_dim, group);
      table.norm(p + "main_norm.weight", config.hidden_dim);
    }
    table.block(p, 0, false);
    if (s == num_blocks - 1) {
      table.collapse(p);
      table.bf16(p + "markov_head.markov_w1.weight", config.vocab_size, markov_rank, group);
      table.bf16(p + "markov_head.markov_w2.weight", config.vocab_size, markov_rank, group);
      table.bf16(p + "confidence_head.proj.weight", 1, config.hidden_dim + markov_rank, group);
    }
  }
  return table.take();
}

}  // namespace dsv4
