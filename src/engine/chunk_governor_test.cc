#include "engine/chunk_governor.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

// A device that takes `base` for a step, and `row` more for each prompt row.
struct Device {
  double base, row;
  double seconds(int64_t prompt_rows) const { return base + row * static_cast<double>(prompt_rows); }
};

TEST(ChunkGovernor, gives_the_whole_chunk_until_it_knows) {
  ChunkGovernor g;
  EXPECT_EQ(g.limit(256), 256);
  g.observe(0, 256, 1.0);
  EXPECT_EQ(g.limit(256), 256);
  g.observe(4, 100, 1.0);  // what decoding takes is not known yet
  EXPECT_EQ(g.limit(256), 256);
}

TEST(ChunkGovernor, a_mixed_step_takes_about_twice_as_long) {
  for (const Device d : {Device{0.010, 0.0001}, Device{0.010, 0.0003}, Device{0.002, 0.00002}}) {
    ChunkGovernor g;
    for (int i = 0; i < 10; ++i) g.observe(8, 0, d.base);
    for (int i = 0; i < 100; ++i) {
      const int64_t rows = g.limit(256);
      g.observe(8, rows, d.seconds(rows));
    }
    EXPECT_NEAR(d.seconds(g.limit(256)), ChunkGovernor::kSlowdown * d.base, 0.1 * d.base);
  }
}

TEST(ChunkGovernor, stays_within_its_bounds) {
  ChunkGovernor slow, free;
  for (int i = 0; i < 10; ++i) {
    slow.observe(8, 0, 0.001);
    slow.observe(8, 64, 1.0);
    free.observe(8, 0, 0.01);
    free.observe(8, 64, 0.009);
  }
  EXPECT_EQ(slow.limit(256), ChunkGovernor::kLeast);
  EXPECT_EQ(slow.limit(4), 4);
  EXPECT_EQ(free.limit(256), 256);
}

TEST(ChunkGovernor, follows_a_change_and_not_an_accident) {
  ChunkGovernor g;
  const Device d{0.010, 0.0001};
  const auto run = [&](double base) {
    for (int i = 0; i < 60; ++i) {
      g.observe(8, 0, base);
      const int64_t rows = g.limit(256);
      g.observe(8, rows, base + d.row * static_cast<double>(rows));
    }
    return g.limit(256);
  };
  EXPECT_NEAR(static_cast<double>(run(0.010)), 100, 5);
  g.observe(8, 100, 0.100);  // five times as long, once
  EXPECT_GT(g.limit(256), 30);
  EXPECT_NEAR(static_cast<double>(run(0.020)), 200, 10);
}

// As when a process starts: steps take twice as long for a while, and right then a prompt begins.
TEST(ChunkGovernor, is_not_led_astray_by_a_disturbed_while) {
  ChunkGovernor g;
  const Device d{0.010, 0.0001};
  for (int i = 0; i < 31; ++i) g.observe(8, 0, d.base);
  for (int i = 0; i < 10; ++i) g.observe(8, 0, 2 * d.base);
  for (int i = 0; i < 10; ++i) g.observe(8, 50, d.seconds(50));
  EXPECT_NEAR(static_cast<double>(g.limit(256)), 100, 5);
}

}  // namespace
}  // namespace dsv4
