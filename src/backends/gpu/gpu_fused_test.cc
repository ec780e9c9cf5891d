// A fused operator gives the bits of its parts on the same device (ops/fused_ops.h).
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backends/gpu/gpu_device.h"
#include "backends/gpu/gpu_fixture.h"
#include "ops/fused_ops.h"
#include "ops/linear.h"
#include "ops/swiglu.h"

namespace dsv4 {

namespace {

// A device, and memory on it with contents.
class FusedOnGpu : public OnGpu {
 protected:
  Matrix<float> matrix(int64_t rows, int64_t cols, float sigma) {
    std::normal_distribution<float> normal(0, sigma);
    std::vector<float> v(static_cast<size_t>(rows * cols));
    for (float& x : v) x = normal(rng_);
    return {put(v), rows, cols};
  }
  WeightView weight(WeightFormat format, int64_t n, int64_t k) {
    WeightView view{format, nullptr, nullptr, n, k};
    std::vector<uint8_t> data(static_cast<size_t>(n * view.row_bytes())), scale(static_cast<size_t>(view.total_bytes() - n * view.row_bytes()));
    for (uint8_t& b : data) {
      b = static_cast<uint8_t>(rng_());
      if (format == WeightFormat::kFp8Block && (b & 0x7f) == 0x7f) b = 0;  // NaN
    }
    for (size_t i = 1; format == WeightFormat::kBF16 && i < data.size(); i += 2) data[i] = static_cast<uint8_t>((data[i] & 0x80) | 0x3c);  // 2^-7 .. 2^-5
    for (uint8_t& b : scale) b = static_cast<uint8_t>(116 + rng_() % 6);
    view.data = data.data();
    view.scale = scale.data();
    buffers_.emplace_back();
    return device_->place_weight(view, "w", &buffers_.back()).value();
  }
  std::vector<float> download(const Matrix<float>& m) {
    std::vector<float> v(static_cast<size_t>(m.rows * m.cols));
    EXPECT_TRUE(device_->download(v.data(), m.data, static_cast<int64_t>(4 * v.size())).ok());
    return v;
  }
  void expect_same(const Matrix<float>& a, const Matrix<float>& b, const std::string& what) {
    const std::vector<float> va = download(a), vb = download(b);
    EXPECT_EQ(std::memcmp(va.data(), vb.data(), 4 * va.size()), 0) << what;
    double sum = 0;
    for (const float x : vb) sum += std::abs(x);
    EXPECT_GT(sum, 0) << what;
  }

  struct HcLinearShape {
    int64_t rows, dim;
    WeightFormat first, second;
    int64_t n0, n1;
  };
  void compare_hc_linear(const HcLinearShape& s) {
    const std::string what = std::to_string(s.rows) + " rows of " + std::to_string(s.dim) + " -> " + std::to_string(s.n0) + ", " + std::to_string(s.n1);
    constexpr int64_t kStreams = 4, kMixes = 24;
    const int64_t width = kStreams * s.dim;
    const Matrix<float> y = matrix(s.rows, s.dim, 1), fn = matrix(kMixes, width, 0.02f), base = matrix(1, kMixes, 0.5f), scale = matrix(1, 3, 1);
    const auto* norm = put(std::vector<uint16_t>(static_cast<size_t>(s.dim), 0x3f90));
    const WeightView w0 = weight(s.first, s.n0, s.dim), w1 = weight(s.second, s.n1, s.dim);
    Matrix<float> next[2], x[2], post[2], comb[2], out[2][2];
    for (int i = 0; i < 2; ++i) {
      rng_.seed(5);
      const Matrix<float> h = matrix(s.rows, width, 1);
      post[i] = matrix(s.rows, kStreams, 1);
      comb[i] = matrix(s.rows, kStreams * kStreams, 0.5f);
      x[i] = matrix(s.rows, s.dim, 1);
      out[i][0] = matrix(s.rows, s.n0, 1);
      out[i][1] = matrix(s.rows, s.n1, 1);
      next[i] = i == 0 ? matrix(s.rows, width, 1) : h;
      const HcPostArgs behind{y, post[i], comb[i], h};
      const HcPreArgs before{next[i], fn, base.data, scale.data, norm, kStreams, 20, 1e-6f, 1e-6f, x[i], post[i], comb[i]};
      const LinearArgs then{x[i], ActivationRounding::kE4M3, 2, {{w0, out[i][0]}, {w1, out[i][1]}}};
      if (i == 0) {
        ASSERT_TRUE(run_op("hc_linear", device_->context(), fused_ops(*device_).hc_linear, HcLinearArgs{{behind, before}, then}).ok());
      } else {
        ASSERT_TRUE(run_op("hc_post", device_->context(), device_->ops().hc_post, behind).ok());
        ASSERT_TRUE(run_op("hc_pre", device_->context(), device_->ops().hc_pre, before).ok());
        ASSERT_TRUE(run_op("linear", device_->context(), device_->ops().linear, then).ok());
      }
    }
    expect_same(next[0], next[1], what + ": h");
    expect_same(x[0], x[1], what + ": x");
    expect_same(post[0], post[1], what + ": post");
    expect_same(comb[0], comb[1], what + ": comb");
    expect_same(out[0][0], out[1][0], what + ": first product");
    expect_same(out[0][1], out[1][1], what + ": second product");
  }

  std::mt19937 rng_{17};
};

TEST_F(FusedOnGpu, hc_post_pre_is_hc_post_then_hc_pre) {
  if (fused_ops(*device_).hc_post_pre == nullptr) GTEST_SKIP() << "this card has no such operator";
  const struct { int64_t rows, dim, streams; } shapes[] = {{1, 4096, 4}, {2, 4096, 4}, {4, 4096, 4}, {5, 4096, 4}, {1, 256, 4}, {3, 128, 2}};
  for (const auto& s : shapes) {
    const std::string what = std::to_string(s.rows) + " rows of " + std::to_string(s.streams) + " x " + std::to_string(s.dim);
    const int64_t width = s.streams * s.dim, mixes = (2 + s.streams) * s.streams;
    const Matrix<float> y = matrix(s.rows, s.dim, 1), fn = matrix(mixes, width, 0.02f), base = matrix(1, mixes, 0.5f), scale = matrix(1, 3, 1);
    const auto* norm = put(std::vector<uint16_t>(static_cast<size_t>(s.dim), 0x3f90));
    Matrix<float> h[2], x[2], post[2], comb[2];
    for (int i = 0; i < 2; ++i) {
      rng_.seed(5);
      h[i] = matrix(s.rows, width, 1);
      post[i] = matrix(s.rows, s.streams, 1);
      comb[i] = matrix(s.rows, s.streams * s.streams, 0.5f);
      x[i] = matrix(s.rows, s.dim, 1);
      const HcPostArgs behind{y, post[i], comb[i], h[i]};
      const HcPreArgs before{h[i], fn, base.data, scale.data, norm, s.streams, 20, 1e-6f, 1e-6f, x[i], post[i], comb[i]};
      if (i == 0) {
        ASSERT_TRUE(run_op("hc_post_pre", device_->context(), fused_ops(*device_).hc_post_pre, HcPostPreArgs{behind, before}).ok());
      } else {
        ASSERT_TRUE(run_op("hc_post", device_->context(), device_->ops().hc_post, behind).ok());
        ASSERT_TRUE(run_op("hc_pre", device_->context(), device_->ops().hc_pre, before).ok());
      }
    }
    expect_same(h[0], h[1], what + ": h");
    expect_same(x[0], x[1], what + ": x");
    expect_same(post[0], post[1], what + ": post");
    expect_same(comb[0], comb[1], what + ": comb");
  }
}

TEST_F(FusedOnGpu, hc_linear_is_hc_post_then_hc_pre_then_linear) {
  if (fused_ops(*device_).hc_linear == nullptr) GTEST_SKIP() << "this card has no such operator";
  constexpr WeightFormat kFp8 = WeightFormat::kFp8Block, kBf16 = WeightFormat::kBF16;
  const HcLinearShape shapes[] = {{1, 4096, kFp8, kBf16, 1024, 512}, {1, 4096, kBf16, kBf16, 160, 32},
                                  {1, 4096, kFp8, kFp8, 512, 128},   {1, 4096, kFp8, kBf16, 2048, 2112},  // as many strips as fit at once
                                  {1, 4096, kBf16, kBf16, 7, 9},                                          // not in strips
                                  {2, 4096, kFp8, kBf16, 256, 64},   {1, 256, kFp8, kBf16, 128, 64}};
  for (const HcLinearShape& s : shapes) compare_hc_linear(s);
}
TEST_F(FusedOnGpu, hc_linear_short) {  // for racecheck
  if (fused_ops(*device_).hc_linear == nullptr) GTEST_SKIP() << "this card has no such operator";
  compare_hc_linear({1, 4096, WeightFormat::kFp8Block, WeightFormat::kBF16, 16, 16});
}

TEST_F(FusedOnGpu, moe_all_is_the_shared_expert_then_the_routed_ones) {
  if (fused_ops(*device_).moe_all == nullptr) GTEST_SKIP() << "this card has no such operator";
  const struct {
    int64_t rows, hidden, ffn;
    std::vector<int32_t> experts;
    WeightFormat format = WeightFormat::kMxfp4;
    ActivationRounding rounding = ActivationRounding::kE4M3;
  } shapes[] = {{1, 4096, 2048, {7, 0, 3, 5, 1, 4}},
                {1, 256, 128, {2, 1, 4, 3}},  // fewer chunks than k groups
                {1, 384, 1280, {6}},
                {1, 1152, 256, {6, 7}},
                {1, 512, 256, {2, -1, 5, 1, -1, 4}},
                {1, 512, 256, {-1, -1}},
                {3, 256, 256, {0, 1, 2, 3, 4, 5}},
                {1, 256, 256, {0, 1}, WeightFormat::kFp8Block},
                {1, 256, 256, {0, 1}, WeightFormat::kMxfp4, ActivationRounding::kNone}};
  constexpr int64_t kExperts = 8;
  for (const auto& s : shapes) {
    const int64_t topk = static_cast<int64_t>(s.experts.size()) / s.rows;
    const std::string what =
        std::to_string(s.rows) + " rows, " + std::to_string(s.hidden) + " x " + std::to_string(s.ffn) + ", " + std::to_string(topk) + " experts";
    std::vector<const uint8_t*> pointers[6];
    for (int64_t e = 0; e < kExperts; ++e) {
      for (size_t m = 0; m < 3; ++m) {
        const WeightView w = weight(s.format, m == 2 ? s.hidden : s.ffn, m == 2 ? s.ffn : s.hidden);
        pointers[2 * m].push_back(w.data);
        pointers[2 * m + 1].push_back(w.scale);
      }
    }
    // The table's order is w1, w3, w2.
    const auto table = [&](size_t i) { return const_cast<const uint8_t* const*>(put(pointers[i])); };
    const ExpertTable experts{s.format, kExperts, s.hidden, s.ffn, table(0), table(1), table(2), table(3), table(4), table(5)};
    const WeightView w1 = weight(WeightFormat::kFp8Block, s.ffn, s.hidden), w3 = weight(WeightFormat::kFp8Block, s.ffn, s.hidden),
                     w2 = weight(WeightFormat::kFp8Block, s.hidden, s.ffn);
    const Matrix<float> x = matrix(s.rows, s.hidden, 1), gate = matrix(s.rows, s.ffn, 1), up = matrix(s.rows, s.ffn, 1), routing = matrix(s.rows, topk, 1);
    const Matrix<const int32_t> chosen(put(s.experts), s.rows, topk);
    Matrix<float> y[2];
    for (int i = 0; i < 2; ++i) {
      y[i] = matrix(s.rows, s.hidden, 1);
      const MoeExpertsArgs routed{x, experts, chosen, routing, 10.0f, s.rounding, y[i]};
      OpContext& context = device_->context();
      if (i == 0) {
        ASSERT_TRUE(run_op("moe_all", context, fused_ops(*device_).moe_all, MoeAllArgs{routed, w1, w3, w2, gate, up}).ok());
      } else {
        const OpTable& ops = device_->ops();
        ASSERT_TRUE(run_op("in", context, ops.linear, LinearArgs{x, s.rounding, 2, {{w1, gate}, {w3, up}}}).ok());
        ASSERT_TRUE(run_op("swiglu", context, ops.swiglu, SwigluArgs{gate, up, 10.0f, gate}).ok());
        ASSERT_TRUE(run_op("out", context, ops.linear, LinearArgs{gate, s.rounding, 1, {{w2, y[i]}}}).ok());
        ASSERT_TRUE(run_op("moe_experts", context, ops.moe_experts, routed).ok());
      }
    }
    expect_same(y[0], y[1], what);
  }
}

TEST_F(FusedOnGpu, norm_linear_is_rms_norm_then_linear) {
  if (fused_ops(*device_).norm_linear == nullptr) GTEST_SKIP() << "this card has no such operator";
  const struct {
    int64_t rows, k, n0, n1;
    ActivationRounding rounding = ActivationRounding::kE4M3;
  } shapes[] = {{1, 1024, 32768, 8192}, {1, 2048, 16384, 16}, {1, 384, 16400, 48}, {1, 128, 16384, 16, ActivationRounding::kNone},
                {1, 1024, 256, 256},    {3, 1024, 512, 256},  {1, 4096, 256, 128}};
  for (const auto& s : shapes) {
    const std::string what = std::to_string(s.rows) + " x " + std::to_string(s.k) + " -> " + std::to_string(s.n0);
    const WeightView w0 = weight(WeightFormat::kFp8Block, s.n0, s.k), w1 = weight(WeightFormat::kFp8Block, s.n1, s.k);
    std::vector<uint16_t> scale(static_cast<size_t>(s.k));
    for (uint16_t& v : scale) v = static_cast<uint16_t>(0x3f60 + rng_() % 64);
    const auto* norm = put(scale);
    Matrix<float> y[2][2];
    for (int i = 0; i < 2; ++i) {
      rng_.seed(3);
      const Matrix<float> x = matrix(s.rows, s.k, 3);
      y[i][0] = matrix(s.rows, s.n0, 1);
      y[i][1] = matrix(s.rows, s.n1, 1);
      const RmsNormArgs first{x, norm, 1e-6f, x};
      const LinearArgs then{x, s.rounding, 2, {{w0, y[i][0]}, {w1, y[i][1]}}};
      if (i == 0) {
        ASSERT_TRUE(run_op("norm_linear", device_->context(), fused_ops(*device_).norm_linear, NormLinearArgs{first, then}).ok());
      } else {
        ASSERT_TRUE(run_op("rms_norm", device_->context(), device_->ops().rms_norm, first).ok());
        ASSERT_TRUE(run_op("linear", device_->context(), device_->ops().linear, then).ok());
      }
    }
    expect_same(y[0][0], y[1][0], what + ": first");
    expect_same(y[0][1], y[1][1], what + ": second");
  }
}

TEST_F(FusedOnGpu, norm_linear_makes_what_chooses_where_there_is_a_choice) {
  if (fused_ops(*device_).norm_linear == nullptr) GTEST_SKIP() << "this card has no such operator";
  constexpr int64_t kK = 1024, kN0 = 32768, kN1 = 8192, kAll = 512;
  const WeightView w0 = weight(WeightFormat::kFp8Block, kN0, kK), w1 = weight(WeightFormat::kFp8Block, kN1, kK);
  const auto* norm = put(std::vector<uint16_t>(kK, 0x3f80));
  for (const int32_t position : {-1, 0, 100, 4 * 512 - 1, 4 * 512 + 2, 4 * 513 - 1, 4 * 513, 262000}) {
    Matrix<float> y[2][2];
    for (int i = 0; i < 2; ++i) {
      rng_.seed(3);
      const Matrix<float> x = matrix(1, kK, 3);
      y[i][0] = matrix(1, kN0, 1);
      y[i][1] = matrix(1, kN1, 1);
      NormLinearArgs args{{x, norm, 1e-6f, x}, {x, ActivationRounding::kE4M3, 2, {{w0, y[i][0]}, {w1, y[i][1]}}}};
      if (i == 0) {
        args.positions = put(std::vector<int32_t>{position});
        args.all_of = kAll;
      }
      ASSERT_TRUE(run_op("norm_linear", device_->context(), fused_ops(*device_).norm_linear, args).ok());
    }
    expect_same(y[0][0], y[1][0], "position " + std::to_string(position) + ": first");
    if ((position + 1) / 4 > kAll) expect_same(y[0][1], y[1][1], "position " + std::to_string(position) + ": second");
  }
}

}  // namespace
}  // namespace dsv4
