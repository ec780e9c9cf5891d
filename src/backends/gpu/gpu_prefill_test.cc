// Kernels that only take 256 rows, or 512, and more, against the portable ones on the same card and inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backends/gpu/gpu_device.h"
#include "backends/gpu/gpu_fixture.h"
#include "backends/gpu/gpu_ops.h"
#include "ops/linear.h"
#include "ops/moe_experts.h"
#include "ops/sparse_attention.h"

namespace dsv4 {
namespace {

class PrefillOnGpu : public OnGpu {
 protected:
  Matrix<float> matrix(int64_t rows, int64_t cols) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> v(static_cast<size_t>(rows * cols));
    for (float& x : v) x = normal(rng_);
    return {put(v), rows, cols};
  }
  // Outputs start as NaN: what nobody writes is seen.
  Matrix<float> output(int64_t rows, int64_t cols) {
    return {put(std::vector<float>(static_cast<size_t>(rows * cols), std::numeric_limits<float>::quiet_NaN())), rows, cols};
  }
  WeightView weight(WeightFormat format, int64_t n, int64_t k, uint32_t least_scale, uint32_t scales) {
    WeightView view{format, nullptr, nullptr, n, k};
    std::vector<uint8_t> data(static_cast<size_t>(n * view.row_bytes())), scale(static_cast<size_t>(view.total_bytes() - n * view.row_bytes()));
    for (uint8_t& b : data) {
      b = static_cast<uint8_t>(rng_());
      if (format == WeightFormat::kFp8Block && (b & 0x7f) == 0x7f) b = 0;  // NaN
    }
    if (format == WeightFormat::kBF16) {
      std::normal_distribution<float> normal(0, 0.1f);
      for (size_t i = 0; i < data.size(); i += 2) {
        const float v = normal(rng_);
        std::memcpy(data.data() + i, reinterpret_cast<const uint8_t*>(&v) + 2, 2);
      }
    }
    for (uint8_t& b : scale) b = static_cast<uint8_t>(least_scale + rng_() % scales);
    view.data = data.data();
    view.scale = scale.data();
    buffers_.emplace_back();
    return device_->place_weight(view, "w", &buffers_.back()).value();
  }
  PagedRows cache(int64_t blocks) {
    PagedRows rows{RowFormat::kFp8DsMla, nullptr, block_bytes(RowFormat::kFp8DsMla, kCacheBlockRows, kMlaRowDim), kCacheBlockRows,
                   static_cast<int32_t>(kMlaRowDim)};
    std::vector<uint8_t> bytes(static_cast<size_t>(blocks * rows.block_stride_bytes));
    std::normal_distribution<float> normal(0, 1);
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t r = 0; r < kCacheBlockRows; ++r) {
        uint8_t* data = bytes.data() + row_data_offset(rows, b, r);
        for (int i = 0; i < kMlaNopeDim; ++i) data[i] = static_cast<uint8_t>(rng_() % 127 + (rng_() % 2) * 128);  // no NaN
        for (int i = 0; i < kMlaRopeDim; ++i) {
          const float v = normal(rng_);
          std::memcpy(data + kMlaNopeDim + 2 * i, reinterpret_cast<const uint8_t*>(&v) + 2, 2);
        }
        uint8_t* scale = bytes.data() + b * rows.block_stride_bytes + kCacheBlockRows * kMlaDataBytes + r * kMlaScaleBytes;
        for (int i = 0; i < 7; ++i) scale[i] = static_cast<uint8_t>(116 + rng_() % 6);
        scale[7] = 255;
      }
    }
    rows.base = put(bytes);
    return rows;
  }
  // |a - b| / |b| of each row; nothing at all where b has nothing.
  void expect_close(const Matrix<float>& a, const Matrix<float>& b, double bound, const std::string& what) {
    std::vector<float> va(static_cast<size_t>(a.rows * a.cols)), vb(va.size());
    ASSERT_TRUE(device_->download(va.data(), a.data, static_cast<int64_t>(4 * va.size())).ok());
    ASSERT_TRUE(device_->download(vb.data(), b.data, static_cast<int64_t>(4 * vb.size())).ok());
    double worst = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      double difference = 0, size = 0;
      for (int64_t c = 0; c < a.cols; ++c) {
        const double x = va[static_cast<size_t>(r * a.cols + c)], y = vb[static_cast<size_t>(r * a.cols + c)];
        difference += (x - y) * (x - y);
        size += y * y;
      }
      const double relative = size == 0 && difference == 0 ? 0 : std::sqrt(difference / size);
      ASSERT_LE(relative, bound) << what << ": row " << r;  // NaN fails
      worst = std::max(worst, relative);
    }
    RecordProperty(what, std::to_string(worst));
  }

  struct LinearShape {
    int64_t rows, k, n0, n1;
    uint32_t least_scale = 116, scales = 6;
    ActivationRounding rounding = ActivationRounding::kE4M3;
    WeightFormat second = WeightFormat::kFp8Block;
  };
  void compare_linear(const LinearShape& s) {
    const std::string what = std::to_string(s.rows) + " x " + std::to_string(s.k) + " -> " + std::to_string(s.n0) + ", " + std::to_string(s.n1);
    const WeightView w0 = weight(WeightFormat::kFp8Block, s.n0, s.k, s.least_scale, s.scales), w1 = weight(s.second, s.n1, s.k, s.least_scale, s.scales);
    const Matrix<float> x = matrix(s.rows, s.k);
    Matrix<float> y[2][2];
    for (int i = 0; i < 2; ++i) {
      y[i][0] = output(s.rows, s.n0);
      y[i][1] = output(s.rows, s.n1);
      const OpTable& ops = i == 0 ? device_->ops() : gpu::portable_ops();
      ASSERT_TRUE(run_op("linear", device_->context(), ops.linear, LinearArgs{x, s.rounding, 2, {{w0, y[i][0]}, {w1, y[i][1]}}}).ok());
    }
    // Sums of 2,048 products on the tensor cores: 2.1e-6 on average.
    expect_close(y[0][0], y[1][0], 5e-6, what);
    expect_close(y[0][1], y[1][1], 5e-6, what + " (second)");
  }

  std::mt19937 rng_{23};
};

TEST_F(PrefillOnGpu, linear) {
  const LinearShape shapes[] = {{512, 128, 256, 16},
                                {600, 640, 272, 128},
                                {513, 1024, 1040, 400},
                                {2048, 4608, 144, 48},  // more chunks than a warp's lanes, and than a sum takes
                                {520, 256, 128, 512, 130, 12},
                                {600, 384, 144, 256, 20, 3},
                                {600, 640, 272, 128, 116, 6, ActivationRounding::kNone},
                                {600, 640, 272, 128, 116, 6, ActivationRounding::kBF16},
                                {300, 640, 272, 128},
                                {600, 640, 272, 176, 116, 6, ActivationRounding::kE4M3, WeightFormat::kBF16},
                                {2048, 4096, 16, 160, 116, 6, ActivationRounding::kNone, WeightFormat::kBF16}};
  for (const LinearShape& s : shapes) compare_linear(s);
}
TEST_F(PrefillOnGpu, linear_short) { compare_linear({512, 128, 256, 16}); }  // for racecheck

TEST_F(PrefillOnGpu, grouped_linear) {
  const WeightView w = weight(WeightFormat::kFp8Block, 3 * 144, 512, 116, 6);
  const Matrix<float> x = matrix(600, 3 * 512);
  Matrix<float> y[2];
  for (int i = 0; i < 2; ++i) {
    y[i] = output(600, 3 * 144);
    const OpTable& ops = i == 0 ? device_->ops() : gpu::portable_ops();
    ASSERT_TRUE(run_op("grouped_linear", device_->context(), ops.grouped_linear, GroupedLinearArgs{x, w, 3, y[i]}).ok());
  }
  expect_close(y[0], y[1], 3e-6, "grouped_linear");
}

// A value near a boundary of the rounding between the products may fall on either side; a row has few.
TEST_F(PrefillOnGpu, moe_experts) {
  const struct {
    int64_t rows, hidden, ffn, experts, topk, favoured;  // favoured: experts below this get half of the choices
    uint32_t least_scale = 118, scales = 6;
  } shapes[] = {{300, 384, 256, 5, 2, 1}, {256, 256, 128, 3, 1, 3}, {700, 640, 384, 8, 3, 2}, {1024, 128, 128, 40, 2, 4}, {260, 256, 256, 2, 2, 2, 100, 60}};
  for (const auto& s : shapes) {
    const std::string what = std::to_string(s.rows) + " rows, " + std::to_string(s.hidden) + " x " + std::to_string(s.ffn) + ", " + std::to_string(s.topk) +
                             " of " + std::to_string(s.experts) + " experts";
    std::vector<const uint8_t*> pointers[6];
    for (int64_t e = 0; e < s.experts; ++e) {
      for (size_t m = 0; m < 3; ++m) {
        const WeightView w = weight(WeightFormat::kMxfp4, m == 2 ? s.hidden : s.ffn, m == 2 ? s.ffn : s.hidden, s.least_scale, s.scales);
        pointers[2 * m].push_back(w.data);
        pointers[2 * m + 1].push_back(w.scale);
      }
    }
    const auto table = [&](size_t i) { return const_cast<const uint8_t* const*>(put(pointers[i])); };
    const ExpertTable experts{WeightFormat::kMxfp4, s.experts, s.hidden, s.ffn, table(0), table(1), table(2), table(3), table(4), table(5)};
    std::vector<int32_t> chosen;
    std::vector<float> routing;
    for (int64_t t = 0; t < s.rows; ++t) {
      for (int64_t k = 0; k < s.topk; ++k) {
        const uint32_t r = rng_();
        const bool none = t % 5 == 3 && k + 1 == s.topk && s.topk > 1;  // lives elsewhere
        chosen.push_back(none ? -1 : static_cast<int32_t>(r % static_cast<uint32_t>(r >> 16 & 1u ? s.favoured : s.experts)));
        routing.push_back(none ? std::numeric_limits<float>::quiet_NaN() : 0.1f + static_cast<float>(r >> 8 & 255u) / 256);
      }
    }
    const Matrix<float> x = matrix(s.rows, s.hidden);
    const Matrix<const int32_t> ids(put(chosen), s.rows, s.topk);
    const Matrix<const float> weights(put(routing), s.rows, s.topk);
    Matrix<float> y[2];
    for (int i = 0; i < 2; ++i) {
      y[i] = {put(std::vector<float>(static_cast<size_t>(s.rows * s.hidden), 0.25f)), s.rows, s.hidden};
      const OpTable& ops = i == 0 ? device_->ops() : gpu::portable_ops();
      ASSERT_TRUE(
          run_op("moe_experts", device_->context(), ops.moe_experts, MoeExpertsArgs{x, experts, ids, weights, 10.0f, ActivationRounding::kE4M3, y[i]}).ok());
    }
    expect_close(y[0], y[1], 1e-2, what);
  }
}

TEST_F(PrefillOnGpu, sparse_attention) {
  constexpr int64_t kRows = 300, kHeads = 64, kTopk = 200, kSlots = 2, kWindow = 128;
  constexpr int32_t kRing = 512;
  // Two sequences and padding: the first from its start, the second far along.
  std::vector<int32_t> positions, slots, choices;
  for (int32_t i = 0; i < kRows; ++i) {
    positions.push_back(i >= 290 ? -1 : i < 180 ? i : 2000 + i);
    slots.push_back(i < 180 || i >= 290 ? 0 : 1);
    const int32_t rows = (positions.back() + 1) / 4, some = i % 7 == 0 ? 0 : static_cast<int32_t>(rng_() % static_cast<uint32_t>(kTopk + 1));
    for (int32_t j = 0; j < kTopk; ++j) choices.push_back(j < some && j < rows ? rows - 1 - j : -1);
  }
  std::vector<int32_t> ring_blocks, far_blocks;
  for (int32_t i = 0; i < kSlots * kRing / kCacheBlockRows; ++i) ring_blocks.push_back(i);
  for (int32_t i = 0; i < kSlots * 10; ++i) far_blocks.push_back(kSlots * 10 - 1 - i);
  std::vector<float> sink;
  for (int64_t i = 0; i < kHeads; ++i) sink.push_back(static_cast<float>(i % 5) - 2);
  SparseAttentionArgs args;
  args.q = matrix(kRows, kHeads * kMlaRowDim);
  args.heads = kHeads;
  args.rows = {put(positions), put(slots), put(std::vector<int32_t>{0, 180, 300}), put(std::vector<int32_t>{0, 1}), kRows, kSlots};
  args.window = cache(kSlots * kRing / kCacheBlockRows);
  args.window_table = {put(ring_blocks), kRing / kCacheBlockRows};
  args.ring_rows = kRing;
  args.window_tokens = kWindow;
  args.compressed = cache(kSlots * 10);
  args.compressed_table = {put(far_blocks), 10};
  args.max_compressed_rows = 640;
  args.topk = {put(choices), kRows, kTopk};
  args.sink = put(sink);
  args.scale = 0.044f;
  args.cos_sin = matrix(kRows, kMlaRopeDim);
  for (const int32_t ratio : {0, 4, 128}) {
    args.ratio = ratio;
    Matrix<float> o[2];
    for (int i = 0; i < 2; ++i) {
      args.o = o[i] = output(kRows, kHeads * kMlaRowDim);
      const OpTable& ops = i == 0 ? device_->ops() : gpu::portable_ops();
      ASSERT_TRUE(run_op("sparse_attention", device_->context(), ops.sparse_attention, args).ok());
    }
    expect_close(o[0], o[1], 1e-5, "ratio " + std::to_string(ratio));
  }
}

}  // namespace
}  // namespace dsv4
