#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include "cache/kv_layout.h"

namespace dsv4 {
namespace {

TEST(BlockPool, takes_each_block_once_and_counts_references) {
  BlockPool pool(3);
  const int32_t a = pool.take().value(), b = pool.take().value(), c = pool.take().value();
  EXPECT_NE(a, b);
  EXPECT_NE(b, c);
  EXPECT_NE(a, c);
  EXPECT_EQ(pool.take().status().message(), "cache: all 3 blocks are in use");
  pool.add_reference(b);
  pool.release(b);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(b);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.take().value(), b);
}

TEST(KvLayout, parts_do_not_overlap_and_fill_the_stride) {
  const KvLayout layout = plan_kv_layout({.compress_ratios = {0, 4, 128, 4}});
  EXPECT_EQ(layout.window_block_bytes, 4 * 64 * 584);
  EXPECT_EQ(layout.ratio4_block_bytes, 2 * (64 * 584 + 64 * 68));
  EXPECT_EQ(layout.ratio128_block_bytes, 64 * 584);
  EXPECT_EQ(layout.layers[3].compressed_offset, 64 * 584 + 64 * 68);
  EXPECT_EQ(layout.layers[3].index_offset, 2 * 64 * 584 + 64 * 68);
  EXPECT_EQ(layout.state_floats_per_slot, 2 * (6 * 512 + 6 * 128) + 3 * 512);
  EXPECT_EQ(layout.layers[2].state_floats_before, 6 * 512 + 6 * 128);
}

}  // namespace
}  // namespace dsv4
