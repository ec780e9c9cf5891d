#include "engine/batch_plan.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(BatchPlan, decode_rows_come_first_and_prefill_gets_the_rest) {
  const std::vector<SequenceView> s = {{0, 100, 0, false}, {1, 11, 10, false}, {2, 50, 20, false}, {3, 8, 7, false}};
  const BatchPlan plan = plan_step(s, {.max_rows = 40, .max_logits = 8, .prefill_chunk = 64});
  ASSERT_EQ(plan.sequences.size(), 3u);
  EXPECT_EQ(plan.sequences[0].index, 1);
  EXPECT_EQ(plan.sequences[1].index, 3);
  EXPECT_TRUE(plan.sequences[1].sample);
  EXPECT_EQ(plan.sequences[2].index, 0);
  EXPECT_EQ(plan.sequences[2].count, 38);
  EXPECT_FALSE(plan.sequences[2].sample);
  EXPECT_EQ(plan.num_rows, 40);
  EXPECT_EQ(plan.num_logits, 2);
}

TEST(BatchPlan, a_chunk_that_reaches_the_last_token_samples_and_the_next_prompt_starts) {
  const std::vector<SequenceView> s = {{0, 30, 20, false}, {1, 100, 0, false}};
  const BatchPlan plan = plan_step(s, {.max_rows = 64, .max_logits = 8, .prefill_chunk = 16});
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.sequences[0].count, 10);
  EXPECT_TRUE(plan.sequences[0].sample);
  EXPECT_EQ(plan.sequences[1].count, 6);
}

TEST(BatchPlan, wanted_logits_bound_a_chunk) {
  const std::vector<SequenceView> s = {{0, 30, 0, true}, {1, 5, 4, false}};
  const BatchPlan plan = plan_step(s, {.max_rows = 64, .max_logits = 8, .prefill_chunk = 64});
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.sequences[1].count, 7);
  EXPECT_EQ(plan.num_logits, 8);
}

TEST(BatchPlan, a_chunk_stops_where_a_state_is_saved) {
  const BatchPlan plan = plan_step({{0, 100, 20, false, 30}, {1, 100, 30, false, 30}}, {.max_rows = 64, .max_logits = 8, .prefill_chunk = 64});
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.sequences[0].count, 10);
  EXPECT_EQ(plan.sequences[1].count, 54);  // already there: nothing to stop at
}

TEST(BatchPlan, a_one_token_prompt_is_a_decode_row) {
  const BatchPlan plan = plan_step({{0, 1, 0, false}}, {});
  ASSERT_EQ(plan.sequences.size(), 1u);
  EXPECT_TRUE(plan.sequences[0].sample);
  EXPECT_EQ(plan_step({}, {}).num_rows, 0);
}

TEST(SuitableChunk, gives_each_expert_its_rows_within_bounds) {
  EXPECT_EQ(suitable_chunk(2048, 0, 256, 6), 2048);  // a device without the wish
  EXPECT_EQ(suitable_chunk(512, 32, 16, 4), 128);
  EXPECT_EQ(suitable_chunk(512, 32, 256, 6), 512);  // 1,365 rows would be wanted
  EXPECT_EQ(suitable_chunk(512, 32, 4, 4), 64);
  EXPECT_EQ(suitable_chunk(32, 32, 4, 4), 32);
  EXPECT_EQ(suitable_chunk(512, 32, 0, 0), 64);  // no routed experts
}

}  // namespace
}  // namespace dsv4
