#include "checkpoint/draft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/inspect.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_model.h"

namespace dsv4 {
namespace {

using testing::ElementsAre;

constexpr const char* kShard = "model-00002-of-00002.safetensors";

TestModel with_dspark(int64_t blocks, int64_t rank) {
  TestModel model = TestModel::make();
  model.config.dspark_target_layer_ids = {0, 1, 2};
  model.config.dspark_block_size = 4;
  model.config.dspark_noise_token_id = 5;
  model.config_json = model_config_to_json(model.config);
  for (const ExpectedTensor& t : expected_dspark_tensors(model.config, blocks, rank)) {
    int64_t size = 0;
    EXPECT_TRUE(tensor_size_bytes(t.dtype, t.shape, &size));
    model.add(kShard, {t.name, std::string(dtype_name(t.dtype)), t.shape, std::string(static_cast<size_t>(size), '\x38')});
  }
  return model;
}

DraftInfo draft_of(const TestModel& model) {
  const auto checkpoint = Checkpoint::open(model.write("draft"), {});
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_THAT(checkpoint->warnings(), ElementsAre());
  return checkpoint->draft();
}

TEST(Draft, dspark_blocks_are_counted_from_the_tensors) {
  for (const int64_t blocks : {1, 3}) {
    TestModel model = with_dspark(blocks, 16);
    model.edit_config("num_nextn_predict_layers", "1");  // says nothing
    const DraftInfo draft = draft_of(model);
    EXPECT_EQ(draft.kind, DraftKind::kDSpark);
    EXPECT_EQ(draft.num_blocks, blocks);
    EXPECT_EQ(draft.markov_rank, 16);
    EXPECT_THAT(draft.problems, ElementsAre());
    EXPECT_TRUE(draft.usable());
  }
}

TEST(Draft, tensors_can_be_reached) {
  const auto checkpoint = Checkpoint::open(with_dspark(2, 16).write("draft"), {});
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(checkpoint->weight("mtp.0.main_proj")->k, 3 * 128);
  EXPECT_EQ(checkpoint->weight("mtp.1.markov_head.markov_w1")->n, 24);
  EXPECT_THAT(summary_to_text(summarize(*checkpoint)), testing::HasSubstr("DSpark (0731), 2 blocks, usable"));
}

TEST(Draft, faulty_blocks_turn_speculation_off_and_nothing_else) {
  TestModel model = with_dspark(2, 16);
  model.remove("mtp.1.norm.weight");
  model.tensor("mtp.0.attn.attn_sink").dtype = "I32";
  DraftInfo draft = draft_of(model);
  EXPECT_EQ(draft.kind, DraftKind::kDSpark);
  EXPECT_FALSE(draft.usable());
  EXPECT_THAT(draft.problems, ElementsAre("model-00002-of-00002.safetensors: mtp.0.attn.attn_sink: expected F32 [2], found I32 [2]",
                                          "mtp.1.norm.weight: missing, expected BF16 [128]"));
  model = with_dspark(1, 16);
  model.config_json = model_config_to_json(TestModel::make().config);
  EXPECT_THAT(draft_of(model).problems, ElementsAre("config.json: dspark_block_size is missing", "config.json: dspark_target_layer_ids is missing"));
  model = with_dspark(1, 16);
  model.edit_config("dspark_target_layer_ids", "[0,1,3]");
  EXPECT_THAT(draft_of(model).problems, ElementsAre("config.json: dspark_target_layer_ids names layer 3, the model has 3"));
  // Cut to fewer layers, the model no longer has what the drafts listen to.
  const auto cut = Checkpoint::open(with_dspark(1, 16).write("draft"), {.num_layers = 2});
  ASSERT_TRUE(cut.ok());
  EXPECT_FALSE(cut->draft().usable());
}

TEST(Draft, april_layer_is_recognised) {
  TestModel model = TestModel::make();
  for (const char* name : {"mtp.0.enorm.weight", "mtp.0.hnorm.weight"}) model.add(kShard, {name, "BF16", {128}, std::string(256, '\0')});
  model.add(kShard, {"mtp.0.e_proj.weight", "F8_E4M3", {128, 128}, std::string(128 * 128, '\0')});
  const DraftInfo draft = draft_of(model);
  EXPECT_EQ(draft.kind, DraftKind::kMtp);
  EXPECT_EQ(draft.num_blocks, 1);
  EXPECT_FALSE(draft.usable());
}

TEST(Draft, unknown_draft_tensors) {
  TestModel model = TestModel::make();
  model.add(kShard, {"mtp.0.something.weight", "BF16", {1}, std::string(2, '\0')});
  model.add(kShard, {"mtp.99999999999999999999.x", "BF16", {1}, std::string(2, '\0')});
  const DraftInfo draft = draft_of(model);
  EXPECT_EQ(draft.kind, DraftKind::kNone);
  EXPECT_EQ(draft.num_blocks, 1);  // no number that large is one
  EXPECT_EQ(draft.problems.size(), 1u);
  model.add(kShard, {"mtp.17.x", "BF16", {1}, std::string(2, '\0')});
  model.add(kShard, {"mtp.0.main_proj.weight", "BF16", {1}, std::string(2, '\0')});
  EXPECT_THAT(draft_of(model).problems, ElementsAre("at most 16 draft blocks are read"));
}

}  // namespace
}  // namespace dsv4
