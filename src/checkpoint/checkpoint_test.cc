#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(Checkpoint, shipped_tiny_model_opens_clean) {
  const auto checkpoint = Checkpoint::open("models/dsv4-tiny", {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->tensors().size(), 922u);
  EXPECT_TRUE(checkpoint->warnings().empty());
  EXPECT_EQ(checkpoint->config().compress_ratios, (std::vector<int32_t>{0, 0, 4, 128, 4, 128, 4}));
  EXPECT_EQ(checkpoint->draft().kind, DraftKind::kNone);
  const auto wq_a = checkpoint->weight("layers.0.attn.wq_a");
  ASSERT_TRUE(wq_a.ok());
  EXPECT_EQ(wq_a->format, WeightFormat::kFp8Block);
  EXPECT_EQ(wq_a->n, 128);
  EXPECT_EQ(wq_a->k, 256);
  const auto w2 = checkpoint->weight("layers.6.ffn.experts.15.w2");
  ASSERT_TRUE(w2.ok());
  EXPECT_EQ(w2->format, WeightFormat::kMxfp4);
  EXPECT_EQ(w2->n, 256);
  EXPECT_EQ(w2->k, 128);
  EXPECT_EQ(checkpoint->weight("hc_head_fn")->k, 1024);
  EXPECT_TRUE(checkpoint->f32("layers.0.attn.attn_sink", 4).ok());
  EXPECT_FALSE(checkpoint->f32("layers.0.attn.attn_sink", 5).ok());
  EXPECT_FALSE(checkpoint->bf16("layers.0.attn.attn_sink", 4).ok());
  EXPECT_EQ(checkpoint->weight("layers.7.attn.wq_a").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace dsv4
