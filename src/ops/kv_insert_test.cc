#include <cmath>

#include "cache/paged_rows.h"
#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

// A window of rows of 4 values in blocks of 2, two blocks per slot in crossed order; two slots.
class KvInsert : public ReferenceOps {
 protected:
  std::vector<float> cache = std::vector<float>(4 * 2 * 4, -1);
  std::vector<int32_t> ids = {2, 0, 3, 1}, positions = {4, -1, 3}, slots = {0, 77, 1}, cu = {0, 2, 3}, seq_slots = {0, 1};
  std::vector<float> kv = {3, 4, 1, 0, 9, 9, 9, 9, 0, 0, 5, 0}, turn = {0.6f, 0.8f, 1, 0, 0, 1};
  std::vector<uint16_t> norm = bf16({1, 2, 1, 1});

  KvInsertArgs args() {
    KvInsertArgs a;
    a.kv = matrix(kv, 3, 4);
    a.norm = norm.data();
    a.eps = 0;
    a.cos_sin = matrix(turn, 3, 2);
    a.rows = {positions.data(), slots.data(), cu.data(), seq_slots.data(), 3, 2};
    a.rounding = CacheRounding::kNone;
    a.window = {RowFormat::kF32, reinterpret_cast<uint8_t*>(cache.data()), 2 * 4 * 4, 2, 4};
    a.window_table = {ids.data(), 2};
    a.ring_rows = 4;
    return a;
  }
  const float* row(int32_t block, int32_t offset) const { return cache.data() + (block * 2 + offset) * 4; }
};

TEST_F(KvInsert, by_hand) {
  ASSERT_TRUE(run(ops().kv_insert, args()).ok());
  // Position 4 of slot 0 is ring row 0: block 2, offset 0. Root mean square of (3, 4, 1, 0) is sqrt(6.5).
  const double r = std::sqrt(6.5);
  EXPECT_NEAR(row(2, 0)[0], 3 / r, 1e-6);
  EXPECT_NEAR(row(2, 0)[1], 8 / r, 1e-6);
  EXPECT_NEAR(row(2, 0)[2], 0.6 / r, 1e-6);
  EXPECT_NEAR(row(2, 0)[3], 0.8 / r, 1e-6);
  // Position 3 of slot 1: ring row 3: block ids[2 + 1] = 1, offset 1. (0, 0, 5, 0) has root 2.5; a quarter turn.
  EXPECT_NEAR(row(1, 1)[2], 0, 1e-6);
  EXPECT_NEAR(row(1, 1)[3], 2, 1e-6);
  for (const auto& [block, offset] : {std::pair(2, 1), std::pair(0, 0), std::pair(0, 1), std::pair(3, 0), std::pair(3, 1), std::pair(1, 0)}) {
    EXPECT_EQ(row(block, offset)[0], -1) << block << " " << offset;
  }
}

TEST_F(KvInsert, refuses_bad_arguments) {
  KvInsertArgs a = args();
  a.ring_rows = 5;
  expect_refused(check(a), "kv_insert: a ring of 5 rows does not fit the slot's 4");
  a = args();
  a.window.block_stride_bytes = 31;
  expect_refused(check(a), "kv_insert: block stride is 31 bytes, a block of f32 needs 32");
  a = args();
  a.window.format = RowFormat::kFp8DsMla;
  expect_refused(check(a), "kv_insert: fp8_ds_mla rows have 512 values, not 4");
  a = args();
  a.window.format = RowFormat::kMxfp4;
  a.window.row_dim = 32;
  a.window.block_stride_bytes = 1000;
  a.kv = {kv.data(), 3, 32};
  expect_refused(check(a), "kv_insert: unrounded rows need an f32 cache, not mxfp4");
  a = args();
  a.kv = matrix(kv, 2, 4);
  expect_refused(check(a), "kv_insert: kv is [2, 4], expected [3, 4]");
  a = args();
  a.cos_sin = matrix(turn, 2, 3);
  expect_refused(check(a), "kv_insert: cannot rotate 3 of 4 values");
  a = args();
  a.window_table.ids = nullptr;
  expect_refused(check(a), "kv_insert: window_table is missing");
}

}  // namespace
}  // namespace dsv4
