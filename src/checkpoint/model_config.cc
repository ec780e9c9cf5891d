#include "checkpoint/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/json.h"

namespace dsv4 {
namespace {

// Upper limits keep every product of a few sizes far inside int64, and a hostile config from asking for millions of tensors.
constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 256;
constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr double kSmallestNumber = std::numeric_limits<float>::min();  // a smaller one may turn into 0 as a float

struct IntField {
  const char* key;
  int64_t ModelConfig::*member;
  int64_t min;
  int64_t max;
  bool required;
};

constexpr IntField kIntFields[] = {
    {"hidden_size", &ModelConfig::hidden_dim, 1, kMaxDim, true},
    {"num_hidden_layers", &ModelConfig::num_layers, 1, kMaxLayers, true},
    {"vocab_size", &ModelConfig::vocab_size, 1, kMaxDim, true},
    {"num_attention_heads", &ModelConfig::num_heads, 1, 4096, true},
    {"head_dim", &ModelConfig::head_dim, 2, 4096, true},
    {"qk_rope_head_dim", &ModelConfig::rope_head_dim, 2, 4096, true},
    {"q_lora_rank", &ModelConfig::q_lora_rank, 1, kMaxDim, true},
    {"o_lora_rank", &ModelConfig::o_lora_rank, 1, kMaxDim, true},
    {"o_groups", &ModelConfig::o_groups, 1, 4096, true},
    {"sliding_window", &ModelConfig::window_tokens, 1, kMaxDim, true},
    {"index_n_heads", &ModelConfig::index_num_heads, 1, 4096, true},
    {"index_head_dim", &ModelConfig::index_head_dim, 2, 4096, true},
    {"index_topk", &ModelConfig::index_topk, 1, kMaxDim, true},
    {"n_routed_experts", &ModelConfig::num_experts, 1, kMaxExperts, true},
    {"num_experts_per_tok", &ModelConfig::num_experts_per_token, 1, kMaxExperts, true},
    {"n_shared_experts", &ModelConfig::num_shared_experts, 0, 64, true},
    {"moe_intermediate_size", &ModelConfig::expert_ffn_dim, 1, kMaxDim, true},
    {"num_hash_layers", &ModelConfig::num_hash_layers, 0, kMaxLayers, true},
    {"hc_mult", &ModelConfig::hc_mult, 1, 64, true},
    {"hc_sinkhorn_iters", &ModelConfig::hc_sinkhorn_iters, 1, 1000, true},
    {"max_position_embeddings", &ModelConfig::max_positions, 1, kMaxPositions, true},
    {"dspark_block_size", &ModelConfig::dspark_block_size, 0, 1024, false},
    {"dspark_noise_token_id", &ModelConfig::dspark_noise_token_id, 0, kMaxDim, false},
};

struct FloatField {
  const char* key;
  float ModelConfig::*member;
};

constexpr FloatField kFloatFields[] = {
    {"routed_scaling_factor", &ModelConfig::routed_scaling_factor},
    {"swiglu_limit", &ModelConfig::swiglu_limit},
    {"hc_eps", &ModelConfig::hc_eps},
    {"rms_norm_eps", &ModelConfig::rms_norm_eps},
};

// Switches with one supported value. The formulas of the model page hold for these values only; absent means this value.
struct FixedField {
  const char* key;
  const char* json_value;
};

constexpr FixedField kFixedFields[] = {
    {"expert_dtype", "\"fp4\""}, {"scoring_func", "\"sqrtsoftplus\""}, {"topk_method", "\"noaux_tc\""}, {"norm_topk_prob", "true"},
    {"hidden_act", "\"silu\""},  {"tie_word_embeddings", "false"},     {"num_key_value_heads", "1"},    {"attention_bias", "false"},
};

constexpr FixedField kFixedQuantizationFields[] = {
    {"quant_method", "\"fp8\""}, {"fmt", "\"e4m3\""}, {"scale_fmt", "\"ue8m0\""}, {"weight_block_size", "[128,128]"}};

std::string shown(const Json& value) { return printable_name(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

class ConfigReader {
 public:
  ConfigReader(const std::string& what, FaultList* faults, std::vector<std::string>* unsupported) : what_(what), faults_(faults), unsupported_(unsupported) {}

  ModelConfig read(const Json& json) {
    for (const IntField& f : kIntFields) read_int(json, f.key, f.required, f.min, f.max, &(config_.*f.member));
    for (const FloatField& f : kFloatFields) {
      double value = 0;
      if (read_positive(json, f.key, std::numeric_limits<float>::max(), &value)) config_.*f.member = static_cast<float>(value);
    }
    read_positive(json, "rope_theta", 1e30, &config_.rope_theta);
    read_positive(json, "compress_rope_theta", 1e30, &config_.compress_rope_theta);
    read_token(json, "bos_token_id", &config_.bos_token_id);
    read_token(json, "eos_token_id", &config_.eos_token_id);
    read_ratios(json);
    read_rope_scaling(json);
    read_dspark(json);
    read_fixed(json);
    // Rules across fields are judged on values that passed their own.
    if (faults_->empty()) check_across();
    return config_;
  }

 private:
  void fault(const std::string& message) { faults_->add(what_ + ": " + message); }

  // The member, or null after a fault when a required one is absent.
  const Json* member(const Json& json, const std::string& key, bool required) {
    const auto it = json.find(key);
    if (it != json.end() && !it->is_null()) return &*it;
    if (required) fault(prefix_ + key + " is missing");
    return nullptr;
  }

  void read_int(const Json& json, const std::string& key, bool required, int64_t min, int64_t max, int64_t* out) {
    const Json* value = member(json, key, required);
    if (value == nullptr) return;
    if (!value->is_number_integer() || !(*value >= min && *value <= max)) {
      fault(prefix_ + key + " must be an integer from " + std::to_string(min) + " to " + std::to_string(max) + ", found " + shown(*value));
      return;
    }
    *out = value->get<int64_t>();
  }

  void read_token(const Json& json, const std::string& key, int32_t* out) {
    int64_t value = *out;
    read_int(json, key, true, 0, kMaxDim, &value);
    *out = static_cast<int32_t>(value);
  }

  bool read_positive(const Json& json, const std::string& key, double max, double* out) {
    const Json* value = member(json, key, true);
    if (value == nullptr) return false;
    const double x = value->is_number() ? value->get<double>() : 0;
    if (!(x >= kSmallestNumber && x <= max)) {
      fault(prefix_ + key + " must be a number above 0, found " + shown(*value));
      return false;
    }
    *out = x;
    return true;
  }

  bool read_int_list(const Json& value, const char* key, std::vector<int32_t>* out) {
    bool good = value.is_array() && value.size() <= 4096;
    if (good) {
      for (const Json& item : value) good = good && item.is_number_integer() && item >= 0 && item <= kMaxDim;
    }
    if (!good) {
      fault(std::string(key) + " must be a list of integers, found " + shown(value));
      return false;
    }
    for (const Json& item : value) out->push_back(item.get<int32_t>());
    return true;
  }

  void read_ratios(const Json& json) {
    const Json* value = member(json, "compress_ratios", true);
    std::vector<int32_t> ratios;
    if (value == nullptr || !read_int_list(*value, "compress_ratios", &ratios) || config_.num_layers == 0) return;
    const size_t layers = static_cast<size_t>(config_.num_layers);
    if (ratios.size() < layers) {
      fault("compress_ratios must have an entry for each of the " + std::to_string(layers) + " layers, found " + std::to_string(ratios.size()));
      return;
    }
    ratios.resize(layers);
    for (size_t layer = 0; layer < layers; ++layer) {
      if (ratios[layer] != 0 && ratios[layer] != 4 && ratios[layer] != 128) {
        fault("compress_ratios[" + std::to_string(layer) + "] must be 0, 4 or 128, found " + std::to_string(ratios[layer]));
      }
    }
    config_.compress_ratios = ratios;
  }

  void read_rope_scaling(const Json& json) {
    const std::vector<int32_t>& ratios = config_.compress_ratios;
    const bool needed = std::any_of(ratios.begin(), ratios.end(), [](int32_t r) { return r != 0; });
    const Json* scaling = member(json, "rope_scaling", needed);
    if (scaling == nullptr) return;
    if (!scaling->is_object()) return fault("rope_scaling must be an object, found " + shown(*scaling));
    for (const char* key : {"type", "rope_type"}) {
      const auto type = scaling->find(key);
      if (type != scaling->end() && *type != "yarn")
        unsupported_->push_back("rope_scaling." + std::string(key) + " is " + shown(*type) + ", the engine computes \"yarn\"");
    }
    prefix_ = "rope_scaling.";
    read_positive(*scaling, "factor", 1e6, &config_.yarn_factor);
    read_int(*scaling, "original_max_position_embeddings", true, 1, kMaxPositions, &config_.yarn_original_positions);
    read_positive(*scaling, "beta_fast", 1e6, &config_.yarn_beta_fast);
    read_positive(*scaling, "beta_slow", 1e6, &config_.yarn_beta_slow);
    prefix_.clear();
  }

  void read_dspark(const Json& json) {
    if (const Json* value = member(json, "dspark_target_layer_ids", false)) {
      read_int_list(*value, "dspark_target_layer_ids", &config_.dspark_target_layer_ids);
    }
  }

  void read_fixed(const Json& json) {
    for (const FixedField& f : kFixedFields) check_fixed(json, "", f);
    const Json* quantization = member(json, "quantization_config", false);
    if (quantization == nullptr) return;
    if (!quantization->is_object()) return fault("quantization_config must be an object, found " + shown(*quantization));
    for (const FixedField& f : kFixedQuantizationFields) check_fixed(*quantization, "quantization_config.", f);
  }

  void check_fixed(const Json& json, const std::string& prefix, const FixedField& f) {
    const auto it = json.find(f.key);
    if (it == json.end() || it->is_null() || shown(*it) == f.json_value) return;
    unsupported_->push_back(prefix + f.key + " is " + shown(*it) + ", the engine computes " + f.json_value);
  }

  void multiple(const char* key, int64_t value, int64_t of, const char* why) {
    if (value % of != 0) unsupported_->push_back(std::string(key) + " is " + std::to_string(value) + ", not a multiple of " + std::to_string(of) + ": " + why);
  }

  void fixed_size(const char* key, int64_t value, int64_t want, const char* why) {
    if (value != want) unsupported_->push_back(std::string(key) + " is " + std::to_string(value) + ", the engine runs " + std::to_string(want) + ": " + why);
  }

  void check_across() {
    const ModelConfig& c = config_;
    if (c.num_experts_per_token > c.num_experts) {
      fault("num_experts_per_tok must be at most n_routed_experts = " + std::to_string(c.num_experts) + ", found " + std::to_string(c.num_experts_per_token));
    }
    if (c.num_heads % c.o_groups != 0) {
      fault("o_groups must divide num_attention_heads = " + std::to_string(c.num_heads) + ", found " + std::to_string(c.o_groups));
    }
    if (c.rope_head_dim > c.head_dim || c.rope_head_dim % 2 != 0) {
      fault("qk_rope_head_dim must be even and at most head_dim = " + std::to_string(c.head_dim) + ", found " + std::to_string(c.rope_head_dim));
    }
    if (c.rope_head_dim > c.index_head_dim) {
      fault("qk_rope_head_dim must be at most index_head_dim = " + std::to_string(c.index_head_dim) + ", found " + std::to_string(c.rope_head_dim));
    }
    for (const auto& [key, id] : {std::pair<const char*, int64_t>{"bos_token_id", c.bos_token_id},
                                  {"eos_token_id", c.eos_token_id},
                                  {"dspark_noise_token_id", c.dspark_noise_token_id}}) {
      if (id >= c.vocab_size) fault(std::string(key) + " must be below vocab_size = " + std::to_string(c.vocab_size) + ", found " + std::to_string(id));
    }
    // MXFP4 weights share a scale over 32 columns; a partial group has no defined storage.
    for (const auto& [key, dim] : {std::pair{"hidden_size", c.hidden_dim}, {"moe_intermediate_size", c.expert_ffn_dim}}) {
      if (dim % 32 != 0) fault(std::string(key) + " must be a multiple of 32 (MXFP4 scale groups), found " + std::to_string(dim));
    }
    if (!faults_->empty()) return;
    fixed_size("hc_mult", c.hc_mult, 4, "the residual streams of its hyper-connections");
    fixed_size("n_shared_experts", c.num_shared_experts, 1, "the shared experts of a layer");
    fixed_size("head_dim", c.head_dim, 512, "448 + 64 values are what one fp8_ds_mla cache row holds");
    fixed_size("qk_rope_head_dim", c.rope_head_dim, 64, "448 + 64 values are what one fp8_ds_mla cache row holds");
    fixed_size("index_head_dim", c.index_head_dim, 128, "the size of its Hadamard rotation and of indexer cache rows");
    const char* kGroups = "activations are quantized in groups of 128";
    multiple("hidden_size", c.hidden_dim, 128, kGroups);
    multiple("moe_intermediate_size", c.expert_ffn_dim, 128, kGroups);
    multiple("q_lora_rank", c.q_lora_rank, 128, kGroups);
    multiple("o_groups * o_lora_rank", c.o_groups * c.o_lora_rank, 128, kGroups);
  }

  const std::string& what_;
  FaultList* faults_;
  std::vector<std::string>* unsupported_;
  std::string prefix_;  // of the object being read, for messages
  ModelConfig config_;
};

// The shortest decimal that parses back to x, as a JSON number: 1e-6f prints as 1e-06, not as its 17 double digits.
Json json_float(float x) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), x);
  double value = 0;
  std::from_chars(text, end.ptr, value);
  return value;
}

}  // namespace

ModelConfig read_model_config(const std::string& json_text, const std::string& what, FaultList* faults, std::vector<std::string>* unsupported) {
  const Result<Json> json = parse_json(json_text, what);
  if (!json.ok()) {
    faults->add(json.status().message());
    return {};
  }
  if (!json->is_object()) {
    faults->add(what + ": must be a JSON object");
    return {};
  }
  FaultList own;
  const ModelConfig config = ConfigReader(what, &own, unsupported).read(*json);
  for (const std::string& line : own.lines()) faults->add(line);
  return config;
}

Result<ModelConfig> parse_model_config(const std::string& json_text, const std::string& what) {
  FaultList faults;
  std::vector<std::string> unsupported;
  ModelConfig config = read_model_config(json_text, what, &faults, &unsupported);
  DSV4_RETURN_IF_ERROR(faults.to_status(StatusCode::kInvalidData, what));
  for (const std::string& line : unsupported) faults.add(line);
  DSV4_RETURN_IF_ERROR(faults.to_status(StatusCode::kUnsupported, what + ": would not run"));
  return config;
}

ModelConfig with_first_layers(ModelConfig config, int64_t num_layers) {
  if (num_layers < 0 || num_layers >= config.num_layers) return config;
  config.num_layers = num_layers;
  config.compress_ratios.resize(static_cast<size_t>(num_layers));
  return config;
}

std::string model_config_to_json(const ModelConfig& config) {
  Json json = {{"architectures", {"DeepseekV4ForCausalLM"}}, {"model_type", "deepseek_v4"}, {"torch_dtype", "bfloat16"}};
  for (const IntField& f : kIntFields) {
    if (f.required || !config.dspark_target_layer_ids.empty()) json[f.key] = config.*f.member;
  }
  for (const FloatField& f : kFloatFields) json[f.key] = json_float(config.*f.member);
  json["rope_theta"] = config.rope_theta;
  json["compress_rope_theta"] = config.compress_rope_theta;
  json["rope_scaling"] = {{"type", "yarn"},
                          {"factor", config.yarn_factor},
                          {"original_max_position_embeddings", config.yarn_original_positions},
                          {"beta_fast", config.yarn_beta_fast},
                          {"beta_slow", config.yarn_beta_slow}};
  json["compress_ratios"] = config.compress_ratios;
  json["bos_token_id"] = config.bos_token_id;
  json["eos_token_id"] = config.eos_token_id;
  if (!config.dspark_target_layer_ids.empty()) json["dspark_target_layer_ids"] = config.dspark_target_layer_ids;
  for (const FixedField& f : kFixedFields) json[f.key] = Json::parse(f.json_value);
  for (const FixedField& f : kFixedQuantizationFields) json["quantization_config"][f.key] = Json::parse(f.json_value);
  return json.dump(1) + "\n";
}

}  // namespace dsv4
