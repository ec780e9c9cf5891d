#include "checkpoint/model_config.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/synthetic.h"

namespace dsv4 {
namespace {

Json tiny_json() { return Json::parse(read_file("models/dsv4-tiny/config.json").value()); }

std::string message(const Json& json) { return parse_model_config(json.dump(), "config.json").status().message(); }

// The message after one member is replaced (a null removes it).
std::string message_with(const std::string& pointer, const Json& value) {
  Json json = tiny_json();
  json[Json::json_pointer(pointer)] = value;
  return message(json);
}

TEST(ModelConfig, reads_the_shipped_model) {
  const auto config = parse_model_config(tiny_json().dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->hidden_dim, 256);
  EXPECT_EQ(config->num_layers, 7);
  EXPECT_EQ(config->index_topk, 32);
  EXPECT_EQ(config->num_hash_layers, 3);
  EXPECT_EQ(config->compress_ratios, (std::vector<int32_t>{0, 0, 4, 128, 4, 128, 4}));
  EXPECT_EQ(config->hc_eps, 1e-6f);
  EXPECT_EQ(config->swiglu_limit, 10.0f);
  EXPECT_EQ(config->compress_rope_theta, 160000);
  EXPECT_EQ(config->yarn_original_positions, 65536);
  EXPECT_EQ(config->eos_token_id, 1);
}

TEST(ModelConfig, text_form_parses_back_to_the_same) {
  for (const char* name : {"synthetic:flash", "synthetic:k160", "synthetic:tiny"}) {
    ModelConfig config = synthetic_config(name).value();
    config.rms_norm_eps = 1.2345678e-6f;
    config.dspark_target_layer_ids = {1, 3};
    config.dspark_block_size = 5;
    const std::string text = model_config_to_json(config);
    const auto parsed = parse_model_config(text, name);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(model_config_to_json(*parsed), text);
    EXPECT_EQ(parsed->rms_norm_eps, config.rms_norm_eps);
    EXPECT_EQ(parsed->compress_ratios, config.compress_ratios);
    EXPECT_EQ(parsed->dspark_block_size, 5);
  }
}

TEST(ModelConfig, ratios_may_go_on_past_the_layers) {
  Json json = tiny_json();
  json["compress_ratios"] = {0, 0, 4, 128, 4, 128, 4, 0, 0, 0};
  EXPECT_EQ(parse_model_config(json.dump(), "c")->compress_ratios.size(), 7u);
}

TEST(ModelConfig, each_rule_names_itself) {
  const std::string one = "config.json: 1 fault\n  config.json: ";
  EXPECT_EQ(message_with("/hidden_size", nullptr), one + "hidden_size is missing");
  EXPECT_EQ(message_with("/hidden_size", 0), one + "hidden_size must be an integer from 1 to 1048576, found 0");
  EXPECT_EQ(message_with("/hidden_size", "256"), one + "hidden_size must be an integer from 1 to 1048576, found \"256\"");
  EXPECT_EQ(message_with("/hidden_size", 256.0), one + "hidden_size must be an integer from 1 to 1048576, found 256.0");
  EXPECT_EQ(message_with("/vocab_size", uint64_t{1} << 63), one + "vocab_size must be an integer from 1 to 1048576, found 9223372036854775808");
  EXPECT_EQ(message_with("/hidden_size", 272), one + "hidden_size must be a multiple of 32 (MXFP4 scale groups), found 272");
  EXPECT_EQ(message_with("/rms_norm_eps", 0), one + "rms_norm_eps must be a number above 0, found 0");
  EXPECT_EQ(message_with("/rms_norm_eps", 1e39), one + "rms_norm_eps must be a number above 0, found 1e+39");
  EXPECT_EQ(message_with("/rope_theta", "x"), one + "rope_theta must be a number above 0, found \"x\"");
  EXPECT_EQ(message_with("/num_experts_per_tok", 17), one + "num_experts_per_tok must be at most n_routed_experts = 16, found 17");
  EXPECT_EQ(message_with("/o_groups", 3), one + "o_groups must divide num_attention_heads = 4, found 3");
  EXPECT_EQ(message_with("/qk_rope_head_dim", 63), one + "qk_rope_head_dim must be even and at most head_dim = 512, found 63");
  EXPECT_EQ(message_with("/qk_rope_head_dim", 256), one + "qk_rope_head_dim must be at most index_head_dim = 128, found 256");
  EXPECT_EQ(message_with("/eos_token_id", 2560), one + "eos_token_id must be below vocab_size = 2560, found 2560");
  EXPECT_EQ(message_with("/compress_ratios", {0, 0, 4}), one + "compress_ratios must have an entry for each of the 7 layers, found 3");
  EXPECT_EQ(message_with("/compress_ratios/3", 8), one + "compress_ratios[3] must be 0, 4 or 128, found 8");
  EXPECT_EQ(message_with("/compress_ratios", "all"), one + "compress_ratios must be a list of integers, found \"all\"");
  EXPECT_EQ(message_with("/rope_scaling", nullptr), one + "rope_scaling is missing");
  EXPECT_EQ(message_with("/rope_scaling/factor", -1), one + "rope_scaling.factor must be a number above 0, found -1");
  EXPECT_EQ(message_with("/rope_scaling/beta_slow", nullptr), one + "rope_scaling.beta_slow is missing");
  EXPECT_EQ(message_with("/quantization_config", 1), one + "quantization_config must be an object, found 1");
}

TEST(ModelConfig, a_model_this_engine_does_not_compute_is_refused_as_such) {
  const std::string one = "config.json: would not run: 1 fault\n  ";
  EXPECT_EQ(message_with("/hc_mult", 2), one + "hc_mult is 2, the engine runs 4: the residual streams of its hyper-connections");
  EXPECT_EQ(message_with("/n_shared_experts", 2), one + "n_shared_experts is 2, the engine runs 1: the shared experts of a layer");
  EXPECT_EQ(message_with("/head_dim", 256), one + "head_dim is 256, the engine runs 512: 448 + 64 values are what one fp8_ds_mla cache row holds");
  EXPECT_EQ(message_with("/moe_intermediate_size", 160),
            one + "moe_intermediate_size is 160, not a multiple of 128: activations are quantized in groups of 128");
  EXPECT_EQ(message_with("/expert_dtype", "bf16"), one + "expert_dtype is \"bf16\", the engine computes \"fp4\"");
  EXPECT_EQ(message_with("/scoring_func", "sigmoid"), one + "scoring_func is \"sigmoid\", the engine computes \"sqrtsoftplus\"");
  EXPECT_EQ(message_with("/norm_topk_prob", false), one + "norm_topk_prob is false, the engine computes true");
  EXPECT_EQ(message_with("/num_key_value_heads", 2), one + "num_key_value_heads is 2, the engine computes 1");
  EXPECT_EQ(message_with("/tie_word_embeddings", true), one + "tie_word_embeddings is true, the engine computes false");
  EXPECT_EQ(message_with("/rope_scaling/type", "linear"), one + "rope_scaling.type is \"linear\", the engine computes \"yarn\"");
  EXPECT_EQ(message_with("/quantization_config/weight_block_size", {64, 64}),
            one + "quantization_config.weight_block_size is [64,64], the engine computes [128,128]");
  EXPECT_EQ(parse_model_config(R"({"hc_mult":2})", "c").status().code(), StatusCode::kInvalidData);
  Json json = tiny_json();
  json["hc_mult"] = 2;
  EXPECT_EQ(parse_model_config(json.dump(), "c").status().code(), StatusCode::kUnsupported);
}

TEST(ModelConfig, all_faults_in_one_report) {
  Json json = tiny_json();
  json["hidden_size"] = nullptr;
  json["head_dim"] = -1;
  json["hc_eps"] = "small";
  json["compress_ratios"][2] = 5;
  EXPECT_EQ(message(json),
            "config.json: 4 faults\n"
            "  config.json: hidden_size is missing\n"
            "  config.json: head_dim must be an integer from 2 to 4096, found -1\n"
            "  config.json: hc_eps must be a number above 0, found \"small\"\n"
            "  config.json: compress_ratios[2] must be 0, 4 or 128, found 5");
  EXPECT_EQ(message(Json::array()), "config.json: 1 fault\n  config.json: must be a JSON object");
  EXPECT_EQ(parse_model_config("{", "c.json").status().message(), "c.json: 1 fault\n  c.json: not valid JSON at line 1, column 2");
}

TEST(ModelConfig, fixed_switches_may_be_absent_and_unknown_keys_are_ignored) {
  Json json = tiny_json();
  for (const char* key : {"expert_dtype", "scoring_func", "topk_method", "norm_topk_prob", "quantization_config", "attention_bias"}) json.erase(key);
  json["some_new_key"] = {{"deep", {1, 2}}};
  EXPECT_EQ(message(json), "");
}

TEST(ModelConfig, first_layers) {
  const ModelConfig config = synthetic_config("synthetic:flash").value();
  const ModelConfig cut = with_first_layers(config, 3);
  EXPECT_EQ(cut.num_layers, 3);
  EXPECT_EQ(cut.compress_ratios, (std::vector<int32_t>{0, 0, 4}));
  EXPECT_EQ(with_first_layers(config, -1).num_layers, 43);
  EXPECT_EQ(with_first_layers(config, 99).num_layers, 43);
}

}  // namespace
}  // namespace dsv4
