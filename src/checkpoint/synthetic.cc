#include "checkpoint/synthetic.h"

#include <cmath>
#include <cstring>

namespace dsv4 {
namespace {

constexpr std::string_view kPrefix = "synthetic:";

// Mean squares of the random codes (see the header): E2M1 over its 8 magnitudes; four octaves 2^-3 .. 1 (mean of 4^e = 1.328125 / 4)
// times the mean of (1 + m)^2 over 8 mantissas (2.1484375) or a continuous one (7/3); a scale of s or 2 s has mean square 2.5 s^2.
constexpr double kE2M1MeanSquare = 8.5625;
constexpr double kOctaves = 1.328125 / 4;
constexpr double kE4M3MeanSquare = kOctaves * 2.1484375;
constexpr double kFloatMeanSquare = kOctaves * 7 / 3;
constexpr double kScaleMeanSquare = 2.5;

// The e whose 4^e is nearest to v by ratio. frexp keeps it exact: no libm may round it another way.
int nearest_power_of_4(double v) {
  int x = 0;
  std::frexp(2 * v, &x);  // 2 v in [2^(x-1), 2^x)
  return (x - 1) >> 1;
}

constexpr uint64_t repeat8(uint64_t byte) { return byte * 0x0101010101010101ull; }
constexpr uint64_t repeat16(uint64_t half) { return half * 0x0001000100010001ull; }
constexpr uint64_t repeat32(uint64_t word) { return word * 0x0000000100000001ull; }

// Values with this mean square: four octaves, the top one [2^e, 2^(e+1)).
void set_float_rule(DType dtype, double mean_square, SyntheticRule* rule) {
  const int e = nearest_power_of_4(mean_square / kFloatMeanSquare);
  const auto lowest_exponent = static_cast<uint64_t>(127 + e - 3);
  if (dtype == DType::kBF16) {
    rule->mask = repeat16(0x81ff);
    rule->offset = repeat16(lowest_exponent << 7);
  } else {
    rule->mask = repeat32(0x81ffffff);
    rule->offset = repeat32(lowest_exponent << 23);
  }
}

// Mean squares near those of the trained tiny model. The head is twice as large as a plain projection, so that logits spread; the
// embedding is large enough to be heard beside the layers' outputs.
double float_mean_square(const ExpectedTensor& t) {
  const double per_input = t.fan_in > 0 ? 1.0 / static_cast<double>(t.fan_in) : 1.0;
  switch (t.kind) {
    case TensorKind::kWeight: return t.group == TensorGroup::kEmbedding ? 0.25 : (t.group == TensorGroup::kHead ? 4 : 1) * per_input;
    case TensorKind::kMixFn: return 4 * per_input;
    case TensorKind::kMixBase: return 0.0144;   // 0.12
    case TensorKind::kSink: return 0.04;        // 0.2
    case TensorKind::kPosition: return 0.0025;  // 0.05
    case TensorKind::kRouterBias: return 0.0025;
    case TensorKind::kWeightScale:
    case TensorKind::kNorm:
    case TensorKind::kMixScale:
    case TensorKind::kHashTable: break;
  }
  return 1;
}

ModelConfig flash_config(int64_t num_experts) {
  ModelConfig c;
  c.hidden_dim = 4096;
  c.num_layers = 43;
  c.vocab_size = 129280;
  c.num_heads = 64;
  c.head_dim = 512;
  c.rope_head_dim = 64;
  c.q_lora_rank = 1024;
  c.o_lora_rank = 1024;
  c.o_groups = 8;
  c.window_tokens = 128;
  c.index_num_heads = 64;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.num_experts = num_experts;
  c.num_experts_per_token = 6;
  c.num_shared_experts = 1;
  c.expert_ffn_dim = 2048;
  c.num_hash_layers = 3;
  c.routed_scaling_factor = 1.5f;
  c.swiglu_limit = 10;
  c.max_positions = 1048576;
  return c;
}

// The sizes of the shipped dsv4-tiny.
ModelConfig tiny_config() {
  ModelConfig c = flash_config(16);
  c.hidden_dim = 256;
  c.num_layers = 7;
  c.vocab_size = 2560;
  c.num_heads = 4;
  c.q_lora_rank = 128;
  c.o_lora_rank = 128;
  c.o_groups = 4;
  c.index_num_heads = 8;
  c.index_topk = 32;
  c.num_experts_per_token = 4;
  c.expert_ffn_dim = 128;
  return c;
}

}  // namespace

SyntheticRule synthetic_rule(const ModelConfig& config, const ExpectedTensor& t, uint64_t seed) {
  SyntheticRule rule;
  rule.base = synthetic_base(seed, t.name);
  if (t.kind == TensorKind::kHashTable) {
    rule.num_experts = config.num_experts;
    rule.top_k = config.num_experts_per_token;
  } else if (t.kind == TensorKind::kNorm) {
    rule.mask = repeat16(0x003f);
    rule.offset = repeat16(0x3f60);
  } else if (t.kind == TensorKind::kMixScale) {
    rule.mask = repeat32(0x007fffff);
    rule.offset = repeat32(0x3f000000);
  } else if (t.dtype == DType::kI8) {
    rule.mask = ~uint64_t{0};
  } else if (t.dtype == DType::kF8E4M3) {
    rule.mask = repeat8(0x9f);
    rule.offset = repeat8(0x20);
  } else if (t.dtype == DType::kF8E8M0) {
    const double codes = t.format == WeightFormat::kMxfp4 ? kE2M1MeanSquare : kE4M3MeanSquare;
    rule.mask = repeat8(0x01);
    rule.offset = repeat8(static_cast<uint64_t>(127 + nearest_power_of_4(1.0 / (static_cast<double>(t.fan_in) * codes * kScaleMeanSquare))));
  } else {
    set_float_rule(t.dtype, float_mean_square(t), &rule);
  }
  return rule;
}

void fill_synthetic(const SyntheticRule& rule, int64_t first_byte, int64_t size_bytes, uint8_t* out) {
  const int64_t first = first_byte / 8, words = size_bytes / 8;
  if (rule.num_experts == 0) {
    // The common case on its own, so that the loop is a multiply chain and a store.
    const uint64_t mask = rule.mask, offset = rule.offset;
    uint64_t state = rule.base + static_cast<uint64_t>(first) * kSyntheticStep;
    for (int64_t i = 0; i < words; ++i, state += kSyntheticStep) {
      const uint64_t word = (synthetic_mix(state) & mask) + offset;
      std::memcpy(out + 8 * i, &word, 8);
    }
  } else {
    for (int64_t i = 0; i < words; ++i) {
      const uint64_t word = synthetic_word(rule, first + i);
      std::memcpy(out + 8 * i, &word, 8);
    }
  }
  if (size_bytes % 8 != 0) {
    const uint64_t word = synthetic_word(rule, first + words);
    std::memcpy(out + 8 * words, &word, static_cast<size_t>(size_bytes % 8));
  }
}

bool is_synthetic_model(std::string_view model) { return model.substr(0, kPrefix.size()) == kPrefix; }

Result<ModelConfig> synthetic_config(const std::string& model) {
  ModelConfig config;
  if (model == "synthetic:flash") {
    config = flash_config(256);
  } else if (model == "synthetic:k160") {
    config = flash_config(160);
  } else if (model == "synthetic:tiny") {
    config = tiny_config();
  } else {
    return not_found(model + ": no such synthetic model; there are synthetic:flash, synthetic:k160 and synthetic:tiny");
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    config.compress_ratios.push_back(layer < 2 ? 0 : layer % 2 == 0 ? 4 : 128);
  }
  return config;
}

}  // namespace dsv4
