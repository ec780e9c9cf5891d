#include "checkpoint/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/test_model.h"

namespace dsv4 {
namespace {

using testing::HasSubstr;

ModelSummary summary_of(const std::string& model) { return summarize(Checkpoint::open(model, {.headers_only = true}).value()); }

int64_t token_bytes(const ModelSummary& s, TensorGroup group) {
  for (const GroupTotal& g : s.groups) {
    if (g.group == group) return g.token_bytes;
  }
  return -1;
}

// Bytes per token of V4-Flash, by hand from its shapes.
TEST(Inspect, flash_reads_what_its_shapes_say) {
  const ModelSummary s = summary_of("synthetic:flash");
  const int64_t attention = 1024 * 4096 + 32768 * 1024 + 512 * 4096 + 8192 * 4096 + 4096 * 8192;
  const int64_t attention_small = attention / (128 * 128) + 2 * 1024 + 2 * 512 + 4 * 64;  // scales, two norms, sinks
  EXPECT_EQ(token_bytes(s, TensorGroup::kAttention), 43 * (attention + attention_small));
  EXPECT_EQ(token_bytes(s, TensorGroup::kRoutedExpert), int64_t{43} * 6 * 3 * (2048 * 4096 / 2 + 2048 * 4096 / 32));
  EXPECT_EQ(token_bytes(s, TensorGroup::kSharedExpert), int64_t{43} * 3 * (2048 * 4096 + 2048 * 4096 / (128 * 128)));
  EXPECT_EQ(token_bytes(s, TensorGroup::kHead), int64_t{129280} * 4096 * 2);
  EXPECT_EQ(token_bytes(s, TensorGroup::kEmbedding), 4096 * 2);
  // 40 gates with bias in full; 3 hash layers read 6 gate rows and one row of the table.
  EXPECT_EQ(token_bytes(s, TensorGroup::kRouter), 40 * (256 * 4096 * 2 + 256 * 4) + 3 * (6 * 4096 * 2 + 6 * 8));
  // The published table in GB, two decimals.
  const auto gb = [&](TensorGroup group) { return static_cast<double>(token_bytes(s, group)) / 1e9; };
  EXPECT_NEAR(gb(TensorGroup::kAttention), 4.60, 0.005);
  EXPECT_NEAR(gb(TensorGroup::kRoutedExpert), 3.45, 0.005);
  EXPECT_NEAR(gb(TensorGroup::kSharedExpert), 1.08, 0.005);
  EXPECT_NEAR(gb(TensorGroup::kHead), 1.06, 0.005);
  EXPECT_NEAR(gb(TensorGroup::kCompressor), 0.53, 0.01);
  EXPECT_NEAR(gb(TensorGroup::kIndexer), 0.28, 0.005);
  EXPECT_NEAR(gb(TensorGroup::kHyperConnection), 0.14, 0.005);
  EXPECT_NEAR(gb(TensorGroup::kRouter), 0.08, 0.005);
  EXPECT_NEAR(static_cast<double>(s.token_bytes) / 1e9, 11.2, 0.05);
  EXPECT_EQ(s.window_layers, 2);
  EXPECT_EQ(s.ratio4_layers, 21);
  EXPECT_EQ(s.ratio128_layers, 20);
  EXPECT_EQ(s.hash_layers, 3);
}

TEST(Inspect, pruned_experts_change_what_is_stored_not_what_is_read) {
  const ModelSummary flash = summary_of("synthetic:flash"), k160 = summary_of("synthetic:k160");
  EXPECT_EQ(token_bytes(flash, TensorGroup::kRoutedExpert), token_bytes(k160, TensorGroup::kRoutedExpert));
  EXPECT_GT(flash.total_bytes - k160.total_bytes, int64_t{55'000'000'000});
}

TEST(Inspect, cache_rows) {
  const ModelSummary s = summary_of("models/dsv4-tiny");  // ratios 0 0 4 128 4 128 4
  EXPECT_EQ(s.cache.window_bytes_per_token, 7 * 584);
  EXPECT_EQ(s.cache.window_bytes, 7 * 584 * 128);
  EXPECT_EQ(s.cache.compressed_bytes_per_token, 3 * 146 + 2 * 4.5625);
  EXPECT_EQ(s.cache.indexer_bytes_per_token, 3 * 17);
  EXPECT_EQ(cache_bytes_at(s.config, 3), 7 * 584 * 3);
  EXPECT_EQ(cache_bytes_at(s.config, 4), 7 * 584 * 4 + 3 * (584 + 68));
  EXPECT_EQ(cache_bytes_at(s.config, 1000), 7 * 584 * 128 + 3 * 250 * (584 + 68) + 2 * 7 * 584);
}

TEST(Inspect, text_and_json_forms) {
  TestModel model = TestModel::make();
  model.edit_config("norm_topk_prob", "false");
  model.add("model-00001-of-00002.safetensors", {"spare", "F32", {1}, std::string(4, '\0')});
  const std::string directory = model.write("inspect");
  const ModelSummary s = summary_of(directory);
  const std::string text = summary_to_text(s);
  EXPECT_THAT(text, HasSubstr("3 routed (2 per token), 1 shared"));
  EXPECT_THAT(text, HasSubstr("would not run\n  norm_topk_prob is false, the engine computes true\n"));
  EXPECT_THAT(text, HasSubstr("warnings\n  model-00001-of-00002.safetensors: spare: F32 [1] is not part of this model; it is not used\n"));
  const auto json = parse_json(summary_to_json(s), "inspect");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ((*json)["would_run"], false);
  EXPECT_EQ((*json)["speculation"]["kind"], "none");
  EXPECT_EQ((*json)["layers"]["ratio_128"], 1);
  EXPECT_EQ((*json)["total_bytes"].get<int64_t>(), s.total_bytes);
  EXPECT_EQ((*json)["cache"]["bytes_at"]["4096"].get<int64_t>(), cache_bytes_at(s.config, 4096));
  int64_t sum = 0;
  for (const auto& component : (*json)["components"]) sum += component["stored_bytes"].get<int64_t>();
  EXPECT_EQ(sum, s.total_bytes);
}

}  // namespace
}  // namespace dsv4
