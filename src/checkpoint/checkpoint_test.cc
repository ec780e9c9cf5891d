#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/file.h"
#include "checkpoint/test_model.h"

namespace dsv4 {
namespace {

TEST(Checkpoint, shipped_tiny_model_opens_clean) {
  const auto checkpoint = Checkpoint::open("models/dsv4-tiny", {.prefault = true});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->tensors().size(), 922u);
  EXPECT_THAT(checkpoint->warnings(), testing::ElementsAre());
  EXPECT_EQ(checkpoint->directory(), "models/dsv4-tiny");
  EXPECT_EQ(checkpoint->config().compress_ratios, (std::vector<int32_t>{0, 0, 4, 128, 4, 128, 4}));
  EXPECT_EQ(checkpoint->draft().kind, DraftKind::kNone);
}

TEST(Checkpoint, rand_model_opens_clean) {
  const auto checkpoint = Checkpoint::open("tests/data/models/dsv4-rand", {.prefault = true});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->tensors().size(), 288u);
  EXPECT_THAT(checkpoint->warnings(), testing::ElementsAre());
}

TEST(Checkpoint, typed_access) {
  const auto checkpoint = Checkpoint::open("models/dsv4-tiny", {});
  ASSERT_TRUE(checkpoint.ok());
  const auto wq_a = checkpoint->weight("layers.0.attn.wq_a");
  ASSERT_TRUE(wq_a.ok());
  EXPECT_EQ(wq_a->format, WeightFormat::kFp8Block);
  EXPECT_EQ(wq_a->n, 128);
  EXPECT_EQ(wq_a->k, 256);
  EXPECT_EQ(wq_a->data, checkpoint->find("layers.0.attn.wq_a.weight")->data);
  EXPECT_EQ(wq_a->scale, checkpoint->find("layers.0.attn.wq_a.scale")->data);
  const auto w2 = checkpoint->weight("layers.6.ffn.experts.15.w2");
  ASSERT_TRUE(w2.ok());
  EXPECT_EQ(w2->format, WeightFormat::kMxfp4);
  EXPECT_EQ(w2->n, 256);
  EXPECT_EQ(w2->k, 128);
  EXPECT_EQ(checkpoint->weight("head")->format, WeightFormat::kBF16);
  EXPECT_EQ(checkpoint->weight("hc_head_fn")->format, WeightFormat::kF32);
  EXPECT_EQ(checkpoint->weight("hc_head_fn")->k, 1024);
  EXPECT_EQ(checkpoint->weight("hc_head_base")->n, 1);
  EXPECT_EQ(checkpoint->weight("layers.7.attn.wq_a").status().message(), "models/dsv4-tiny: no tensor layers.7.attn.wq_a.weight");
  EXPECT_EQ(checkpoint->weight("layers.0.ffn.gate.tid2eid").status().message(),
            "model-00001-of-00002.safetensors: layers.0.ffn.gate.tid2eid: I64 is not a weight's format");
  EXPECT_TRUE(checkpoint->f32("layers.0.attn.attn_sink", 4).ok());
  EXPECT_EQ(checkpoint->f32("layers.0.attn.attn_sink", 5).status().message(),
            "model-00001-of-00002.safetensors: layers.0.attn.attn_sink: expected 5 F32 elements, found F32 [4]");
  EXPECT_FALSE(checkpoint->bf16("layers.0.attn.attn_sink", 4).ok());
  EXPECT_TRUE(checkpoint->bf16("norm.weight", 256).ok());
  EXPECT_EQ(checkpoint->f32("norm.nothing", 1).status().code(), StatusCode::kNotFound);
}

// The tiny model's F32 tensors lie at odd offsets of their file: what is handed out is aligned and holds the file's bytes.
TEST(Checkpoint, data_is_aligned_to_its_elements) {
  const auto checkpoint = Checkpoint::open("models/dsv4-tiny", {});
  ASSERT_TRUE(checkpoint.ok());
  const std::string shard = read_file("models/dsv4-tiny/model-00001-of-00002.safetensors").value();
  const TensorEntry* sink = checkpoint->find("layers.0.attn.attn_sink");
  EXPECT_EQ(std::memcmp(sink->data, shard.data() + 8 + 58752 + 2131250, 16), 0);
  for (const TensorEntry& t : checkpoint->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_size_bytes(t.dtype)), 0u) << t.name;
  }
}

TEST(Checkpoint, first_layers_only) {
  const auto checkpoint = Checkpoint::open("models/dsv4-tiny", {.num_layers = 2});
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(checkpoint->config().num_layers, 2);
  EXPECT_NE(checkpoint->find("layers.1.attn_norm.weight"), nullptr);
  EXPECT_EQ(checkpoint->find("layers.2.attn_norm.weight"), nullptr);
  EXPECT_NE(checkpoint->find("head.weight"), nullptr);
}

TEST(Checkpoint, headers_only_hands_out_no_data) {
  const auto checkpoint = Checkpoint::open("models/dsv4-tiny", {.headers_only = true});
  ASSERT_TRUE(checkpoint.ok());
  for (const TensorEntry& t : checkpoint->tensors()) EXPECT_EQ(t.data, nullptr);
}

TEST(Checkpoint, identity_tells_models_apart) {
  const TestModel model = TestModel::make();
  TestModel other = model;
  other.edit_config("swiglu_limit", "9.5");
  TestModel reordered = model;
  std::swap(reordered.shards.begin()->second[3], reordered.shards.begin()->second[5]);
  std::set<std::string> seen;
  for (const std::string& directory :
       {model.write("id1"), other.write("id2"), reordered.write("id3"), std::string("synthetic:tiny"), std::string("models/dsv4-tiny")}) {
    const auto checkpoint = Checkpoint::open(directory, {.headers_only = true});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_THAT(checkpoint->identity(), testing::MatchesRegex("[0-9a-f]{16}")) << checkpoint->identity();
    EXPECT_TRUE(seen.insert(checkpoint->identity()).second) << directory;
    EXPECT_EQ(Checkpoint::open(directory, {})->identity(), checkpoint->identity());
  }
  EXPECT_TRUE(seen.insert(Checkpoint::open("synthetic:tiny", {.headers_only = true, .seed = 2})->identity()).second);
  EXPECT_TRUE(seen.insert(Checkpoint::open("models/dsv4-tiny", {.num_layers = 3})->identity()).second);
}

TEST(Checkpoint, prefault_and_mlock_report_progress_to_the_end) {
  uint64_t last = 0, total = 0;
  CheckpointOptions options;
  options.prefault = true;
  options.progress = [&](const ProgressUpdate& update) {
    EXPECT_EQ(update.task, "load");
    EXPECT_GE(update.done, last);
    last = update.done;
    total = update.total;
  };
  ASSERT_TRUE(Checkpoint::open("models/dsv4-tiny", options).ok());
  EXPECT_EQ(last, 22585612u);
  EXPECT_EQ(total, 22585612u);
  // Pinning succeeds, or names the limit where the process may not.
  const auto pinned = Checkpoint::open("models/dsv4-tiny", {.mlock = true});
  if (!pinned.ok()) {
    EXPECT_EQ(pinned.status().code(), StatusCode::kResourceLimit);
  }
}

}  // namespace
}  // namespace dsv4
