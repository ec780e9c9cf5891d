#include "cache/paged_rows.h"
#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

// Keys of two values, blocks of 2 rows in crossed order, ratio 4; two heads.
class IndexerTopk : public ReferenceOps {
 protected:
  //                         block 0: rows 2, 3   block 1: rows 0, 1
  std::vector<float> keys = {2, 0, 1, 5, 1, 0, -3, 1};
  std::vector<int32_t> ids = {1, 0}, positions = {15, 11, 2, -1}, slots = {0, 0, 0, 99}, cu = {0, 4}, seq_slots = {0};
  std::vector<float> q, w;
  std::vector<int32_t> indices = std::vector<int32_t>(8, 7);

  IndexerTopkArgs args() {
    q.clear();
    w.clear();
    for (int t = 0; t < 4; ++t) {
      q.insert(q.end(), {1, 0, 0, 1});  // head 0 sees the first value, head 1 the second
      w.insert(w.end(), {2, -1});
    }
    IndexerTopkArgs a;
    a.q = matrix(q, 4, 4);
    a.w = matrix(w, 4, 2);
    a.weight_scale = 0.5f;
    a.heads = 2;
    a.rows = {positions.data(), slots.data(), cu.data(), seq_slots.data(), 4, 1};
    a.ratio = 4;
    a.keys = {RowFormat::kF32, reinterpret_cast<uint8_t*>(keys.data()), 16, 2, 2};
    a.table = {ids.data(), 2};
    a.max_rows = 4;
    a.indices = matrix(indices, 4, 2);
    return a;
  }
};

TEST_F(IndexerTopk, by_hand) {
  // score = 0.5 * (2 relu(first) - relu(second)): rows 0..3 = 1, -0.5, 2, -1.5
  ASSERT_TRUE(run(ops().indexer_topk, args()).ok());
  EXPECT_EQ(indices, (std::vector<int32_t>{0, 2, 0, 2, -1, -1, -1, -1}));
}

TEST_F(IndexerTopk, ties_go_to_the_lowest) {
  keys = {1, 0, 1, 0, 1, 0, 1, 0};
  ASSERT_TRUE(run(ops().indexer_topk, args()).ok());
  EXPECT_EQ(indices, (std::vector<int32_t>{0, 1, 0, 1, -1, -1, -1, -1}));
}

TEST_F(IndexerTopk, refuses_bad_arguments) {
  IndexerTopkArgs a = args();
  ASSERT_TRUE(check(a).ok());
  a.heads = 0;
  expect_refused(check(a), "indexer_topk: heads, ratio and top-k must be positive");
  a = args();
  a.heads = 1;
  expect_refused(check(a), "indexer_topk: q is [4, 4], expected [4, 2]");
  a = args();
  a.keys.base = nullptr;
  expect_refused(check(a), "indexer_topk: cache has no memory");
  a = args();
  a.indices = matrix(indices, 2, 2);
  expect_refused(check(a), "indexer_topk: indices is [2, 2], expected [4, 2]");
  a = args();
  a.table.ids = nullptr;
  expect_refused(check(a), "indexer_topk: table is missing");
}

}  // namespace
}  // namespace dsv4
