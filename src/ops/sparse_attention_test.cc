#include <cmath>

#include "cache/paged_rows.h"
#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

// Keys of two values that do not rotate; a window of 2 in a ring of 3 rows, blocks of 2; compressed rows in one block.
class SparseAttention : public ReferenceOps {
 protected:
  std::vector<float> window = {1, 0, 0, 1, 2, 2, NAN, NAN}, compressed = {4, 0, 0, 4, -4, 0};
  std::vector<int32_t> window_ids = {0, 1}, compressed_ids = {0}, positions = {0}, slots = {0}, cu = {0, 1}, seq_slots = {0}, topk = {1, -1};
  std::vector<float> q = {1, 0}, sink = {0}, turn = std::vector<float>(2), o = std::vector<float>(2, 9);

  SparseAttentionArgs args(int32_t position, int32_t ratio) {
    positions[0] = position;
    SparseAttentionArgs a;
    a.q = matrix(q, 1, 2);
    a.heads = 1;
    a.rows = {positions.data(), slots.data(), cu.data(), seq_slots.data(), 1, 1};
    a.window = {RowFormat::kF32, reinterpret_cast<uint8_t*>(window.data()), 16, 2, 2};
    a.window_table = {window_ids.data(), 2};
    a.ring_rows = 3;
    a.window_tokens = 2;
    a.ratio = ratio;
    a.compressed = {RowFormat::kF32, reinterpret_cast<uint8_t*>(compressed.data()), 24, 3, 2};
    a.compressed_table = {compressed_ids.data(), 1};
    a.max_compressed_rows = 3;
    a.topk = matrix(topk, 1, 2);
    a.sink = sink.data();
    a.scale = 0.5f;
    a.cos_sin = {turn.data(), 1, 0, 0};
    a.o = matrix(o, 1, 2);
    return a;
  }
};

TEST_F(SparseAttention, one_key_and_the_sink) {
  sink[0] = 0.5f;  // as large as the key's score: half each, and the sink's value is zero
  ASSERT_TRUE(run(ops().sparse_attention, args(0, 0)).ok());
  EXPECT_FLOAT_EQ(o[0], 0.5f);
  EXPECT_EQ(o[1], 0);
}

TEST_F(SparseAttention, window_of_two_in_a_ring_of_three) {
  ASSERT_TRUE(run(ops().sparse_attention, args(4, 0)).ok());  // positions 3, 4 = ring rows 0, 1
  const double a = std::exp(0.5), sum = a + 1 + 1;
  EXPECT_NEAR(o[0], a / sum, 1e-6);
  EXPECT_NEAR(o[1], 1 / sum, 1e-6);
}

TEST_F(SparseAttention, compressed_rows_of_a_list_up_to_its_end) {
  ASSERT_TRUE(run(ops().sparse_attention, args(4, 4)).ok());  // window rows as above and compressed row 1 = (0, 4), of score 0
  const double a = std::exp(0.5), sum = a + 1 + 1 + 1;
  EXPECT_NEAR(o[0], a / sum, 1e-6);
  EXPECT_NEAR(o[1], (1 + 4) / sum, 1e-6);
}

TEST_F(SparseAttention, ratio_128_sees_all_complete_rows) {
  ASSERT_TRUE(run(ops().sparse_attention, args(255, 128)).ok());  // ring rows 2, 0 and compressed rows 0, 1
  const double e0 = std::exp(1.0), e1 = std::exp(0.5), e2 = std::exp(2.0), sum = e0 + e1 + e2 + 1 + 1;
  EXPECT_NEAR(o[0], (2 * e0 + e1 + 4 * e2) / sum, 1e-5);
  EXPECT_NEAR(o[1], (2 * e0 + 4) / sum, 1e-5);
}

TEST_F(SparseAttention, rotates_back) {
  sink[0] = -1e30f;
  turn = {0.6f, 0.8f};
  SparseAttentionArgs a = args(0, 0);
  a.cos_sin = matrix(turn, 1, 2);
  ASSERT_TRUE(run(ops().sparse_attention, a).ok());
  EXPECT_FLOAT_EQ(o[0], 0.6f);  // (1, 0) turned by minus the angle
  EXPECT_FLOAT_EQ(o[1], -0.8f);
}

TEST_F(SparseAttention, padding_is_zero) {
  ASSERT_TRUE(run(ops().sparse_attention, args(-1, 0)).ok());
  EXPECT_EQ(o, (std::vector<float>{0, 0}));
}

TEST_F(SparseAttention, refuses_bad_arguments) {
  SparseAttentionArgs a = args(0, 4);
  ASSERT_TRUE(check(a).ok());
  a.ring_rows = 1;
  expect_refused(check(a), "sparse_attention: a ring of 1 rows must hold a window of 2 and fit the slot's 4");
  a = args(0, 3);
  expect_refused(check(a), "sparse_attention: ratio is 3, 0, 4 or 128 is supported");
  a = args(0, 4);
  a.sink = nullptr;
  expect_refused(check(a), "sparse_attention: sink is missing");
  a = args(0, 4);
  a.topk.rows = 2;
  expect_refused(check(a), "sparse_attention: topk is [2, 2], expected [1, 2]");
  a = args(0, 4);
  a.compressed.row_dim = 1;
  expect_refused(check(a), "sparse_attention: compressed rows has 1 elements, expected 2");
  a = args(0, 4);
  a.heads = 2;
  expect_refused(check(a), "sparse_attention: q is [1, 2], expected [1, 4]");
  a = args(0, 0);
  a.compressed.base = nullptr;
  EXPECT_TRUE(check(a).ok()) << "ratio 0 has no compressed rows";
}

}  // namespace
}  // namespace dsv4
