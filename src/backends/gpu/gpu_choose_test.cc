// choose_rotate, and the choice by a cluster of blocks: the indices and bits of indexer_query, indexer_topk and query_norm_rope, one after another, at any
// length. A batch too large for clusters is the witness for the choice: there one block chooses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/gpu/gpu_device.h"
#include "backends/gpu/gpu_fixture.h"
#include "ops/fused_ops.h"

namespace dsv4 {
namespace {

enum class Keys { kRandom, kAllEqual, kPairsEqual, kFewDistinct };
enum class Weights { kNormal, kNan, kInfinite, kNegative };

struct Choice {
  int64_t count, max_rows;
  int64_t topk = 512;
  Keys keys = Keys::kRandom;
  Weights weights = Weights::kNormal;
  int64_t heads = 64;
  int32_t beyond = 0;  // tokens behind the last whole row
  bool nan_query = false;
};

class ChooseOnGpu : public OnGpu {
 protected:
  template <class T>
  std::vector<T> get(const T* from, int64_t count) {
    std::vector<T> v(static_cast<size_t>(count));
    EXPECT_TRUE(device_->download(v.data(), from, count * static_cast<int64_t>(sizeof(T))).ok());
    return v;
  }
  std::vector<float> normal(int64_t count) {
    std::normal_distribution<float> d;
    std::vector<float> v(static_cast<size_t>(count));
    for (float& x : v) x = d(rng_);
    return v;
  }
  // The same row `times` times over.
  static std::vector<float> repeated(const std::vector<float>& row, int64_t times) {
    std::vector<float> v;
    for (int64_t i = 0; i < times; ++i) v.insert(v.end(), row.begin(), row.end());
    return v;
  }

  void compare(const Choice& c) {
    constexpr int64_t kBatch = 17, kDim = 128, kRope = 64, kHeads = 64, kHeadDim = 512, kBlockRows = 64;
    const std::string what = std::to_string(c.count) + " of " + std::to_string(c.max_rows) + " rows, top " + std::to_string(c.topk) + ", keys " +
                             std::to_string(static_cast<int>(c.keys)) + ", weights " + std::to_string(static_cast<int>(c.weights));
    SCOPED_TRACE(what);
    rng_.seed(static_cast<uint32_t>(c.count + c.topk));
    // Keys of slot 1, in blocks of 64 rows that lie in any order.
    const int64_t blocks = (c.max_rows + kBlockRows - 1) / kBlockRows, stride = block_bytes(RowFormat::kMxfp4, kBlockRows, kDim);
    std::vector<uint8_t> arena(static_cast<size_t>(blocks * stride));
    std::vector<int32_t> ids(static_cast<size_t>(2 * blocks), 0);
    std::iota(ids.begin() + blocks, ids.end(), 0);
    std::shuffle(ids.begin() + blocks, ids.end(), rng_);
    std::vector<std::vector<uint8_t>> rows;
    const int64_t distinct = c.keys == Keys::kAllEqual ? 1 : c.keys == Keys::kFewDistinct ? 7 : c.max_rows;
    for (int64_t j = 0; j < distinct; ++j) {
      std::vector<uint8_t> row(68);
      for (int i = 0; i < 68; ++i) row[static_cast<size_t>(i)] = static_cast<uint8_t>(i < 64 ? rng_() : 122 + rng_() % 4);
      rows.push_back(row);
    }
    for (int64_t j = 0; j < c.max_rows; ++j) {
      const int64_t which = distinct == 1 ? 0 : c.keys == Keys::kFewDistinct ? static_cast<int64_t>(rng_() % 7) : c.keys == Keys::kPairsEqual ? j / 2 : j;
      const std::vector<uint8_t>& row = rows[static_cast<size_t>(which)];
      uint8_t* block = arena.data() + ids[static_cast<size_t>(blocks + j / kBlockRows)] * stride;
      std::copy(row.begin(), row.begin() + 64, block + j % kBlockRows * 64);
      std::copy(row.begin() + 64, row.end(), block + kBlockRows * 64 + j % kBlockRows * 4);
    }
    std::vector<float> w = normal(c.heads), index_q = normal(c.heads * kDim);
    if (c.weights == Weights::kNan) w[5] = std::numeric_limits<float>::quiet_NaN();
    if (c.weights == Weights::kInfinite) w[3] = std::numeric_limits<float>::infinity();
    if (c.weights == Weights::kNegative) {
      for (float& x : w) x = -std::fabs(x);
    }
    if (c.nan_query) index_q[200] = std::numeric_limits<float>::infinity();
    std::vector<float> turn(kRope);
    for (size_t i = 0; i < kRope; i += 2) {
      turn[i] = std::cos(static_cast<float>(i));
      turn[i + 1] = std::sin(static_cast<float>(i));
    }
    const std::vector<float> q = normal(kHeads * kHeadDim);
    const PagedRows keys{RowFormat::kMxfp4, put(arena), stride, kBlockRows, kDim};
    const BlockTable table{put(ids), blocks};
    std::vector<int32_t> cu(kBatch + 1);
    std::iota(cu.begin(), cu.end(), 0);
    const std::vector<int32_t> positions(kBatch, static_cast<int32_t>(4 * c.count - 1 + c.beyond)), slots(kBatch, 1);
    const float* const turns = put(repeated(turn, kBatch));
    const float* const weights = put(repeated(w, kBatch));
    const auto* at = put(positions);
    const auto* slot = put(slots);
    const auto* cu_rows = put(cu);
    OpContext& context = device_->context();
    const OpTable& ops = device_->ops();
    std::vector<int32_t> chosen[3];
    std::vector<float> rotated[3];
    for (int way = 0; way < 3; ++way) {  // fused; parts; parts in a batch
      const int64_t t = way == 2 ? kBatch : 1;
      const SequenceRows step{at, slot, cu_rows, slot, t, t};
      const Matrix<const float> cos_sin(turns, t, kRope);
      const Matrix<float> iq(put(repeated(index_q, t)), t, c.heads * kDim), big(put(repeated(q, t)), t, kHeads * kHeadDim);
      const Matrix<int32_t> out(put(std::vector<int32_t>(static_cast<size_t>(t * c.topk), -7)), t, c.topk);
      const IndexerQueryArgs query{iq, c.heads, cos_sin, true};
      const IndexerTopkArgs choose{iq, Matrix<const float>(weights, t, c.heads), 0.01f, c.heads, step, 4, keys, table, c.max_rows, out};
      const QueryNormRopeArgs rotate{big, kHeads, cos_sin, 1e-6f};
      if (way == 0) {
        // Twice: what the first launch leaves behind must do for the second.
        for (int i = 0; i < 2; ++i) {
          ASSERT_TRUE(device_->upload(big.data, q.data(), static_cast<int64_t>(4 * q.size())).ok());
          ASSERT_TRUE(device_->upload(iq.data, index_q.data(), static_cast<int64_t>(4 * index_q.size())).ok());
          ASSERT_TRUE(run_op("choose_rotate", context, fused_ops(*device_).choose_rotate, ChooseRotateArgs{query, choose, rotate}).ok());
        }
      } else {
        ASSERT_TRUE(run_op("indexer_query", context, ops.indexer_query, query).ok());
        ASSERT_TRUE(run_op("indexer_topk", context, ops.indexer_topk, choose).ok());
        ASSERT_TRUE(run_op("query_norm_rope", context, ops.query_norm_rope, rotate).ok());
      }
      chosen[way] = get(out.data, c.topk);
      rotated[way] = get(big.data, big.cols);
    }
    EXPECT_EQ(chosen[0], chosen[2]);
    EXPECT_EQ(chosen[1], chosen[2]);
    EXPECT_TRUE(rotated[0] == rotated[1] && rotated[0] == rotated[2]);
    if (c.weights == Weights::kNan || c.keys == Keys::kAllEqual) {  // all equal: the lowest
      for (int64_t i = 0; i < c.topk; ++i) ASSERT_EQ(chosen[0][static_cast<size_t>(i)], i < c.count ? i : -1);
    }
    buffers_.clear();
  }

  std::mt19937 rng_{17};
};

// Small enough for compute-sanitizer's racecheck, as are the other tests named short.
TEST_F(ChooseOnGpu, short_one) {
  if (fused_ops(*device_).choose_rotate == nullptr) GTEST_SKIP() << "this card has no such operator";
  compare({.count = 600, .max_rows = 640});
}
TEST_F(ChooseOnGpu, short_two) {
  if (fused_ops(*device_).choose_rotate == nullptr) GTEST_SKIP() << "this card has no such operator";
  compare({.count = 4200, .max_rows = 4224, .topk = 17});
}

TEST_F(ChooseOnGpu, lengths_around_all_borders) {
  if (fused_ops(*device_).choose_rotate == nullptr) GTEST_SKIP() << "this card has no such operator";
  for (const int64_t count : {0, 1, 48, 511, 512, 513, 600, 767, 768, 769, 1023, 1024}) compare({.count = count, .max_rows = 1024});
  for (const int64_t count : {300, 520, 4095, 4096, 4097, 4112, 8192, 8193, 33000}) compare({.count = count, .max_rows = 33000, .beyond = 3});
  compare({.count = 65535, .max_rows = 65536});
  compare({.count = 65536, .max_rows = 65536, .beyond = 2});
  compare({.count = 70001, .max_rows = 70001});  // an odd bound
}

TEST_F(ChooseOnGpu, equal_scores_and_what_is_no_number) {
  if (fused_ops(*device_).choose_rotate == nullptr) GTEST_SKIP() << "this card has no such operator";
  for (const int64_t count : {1000, 5000, 20000}) {
    compare({.count = count, .max_rows = 20000, .keys = Keys::kAllEqual});
    compare({.count = count, .max_rows = 20000, .keys = Keys::kPairsEqual});
    compare({.count = count, .max_rows = 20000, .keys = Keys::kFewDistinct});
    compare({.count = count, .max_rows = 20000, .weights = Weights::kNan});
    compare({.count = count, .max_rows = 20000, .weights = Weights::kInfinite});
    compare({.count = count, .max_rows = 20000, .keys = Keys::kPairsEqual, .weights = Weights::kNegative});
    compare({.count = count, .max_rows = 20000, .nan_query = true});
  }
  compare({.count = 65536, .max_rows = 65536, .keys = Keys::kAllEqual});
  compare({.count = 65536, .max_rows = 65536, .keys = Keys::kFewDistinct});
}

TEST_F(ChooseOnGpu, other_sizes) {
  if (fused_ops(*device_).choose_rotate == nullptr) GTEST_SKIP() << "this card has no such operator";
  compare({.count = 900, .max_rows = 1000, .topk = 1});
  compare({.count = 6000, .max_rows = 6000, .topk = 1});
  compare({.count = 900, .max_rows = 1000, .topk = 17, .heads = 32});
  compare({.count = 9000, .max_rows = 9000, .topk = 2048, .keys = Keys::kPairsEqual});
  compare({.count = 6000, .max_rows = 6000, .topk = 5999});
  compare({.count = 900, .max_rows = 1000, .topk = 17, .heads = 16});  // not for the fused kernel
  compare({.count = 400, .max_rows = 500});
}

}  // namespace
}  // namespace dsv4
