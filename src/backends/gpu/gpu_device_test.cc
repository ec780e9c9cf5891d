#include "backends/gpu/gpu_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "backends/gpu/gpu_fixture.h"
#include "backends/gpu/kernel_plan.h"
#include "backends/gpu/weight_layout.h"
#include "tensor/dtype.h"

namespace dsv4 {

namespace {

using namespace gpu;

struct HostWeight {
  std::vector<uint8_t> data, scale;
  WeightView view;
};

HostWeight random_weight(WeightFormat format, int64_t n, int64_t k, uint32_t seed) {
  HostWeight w;
  w.view = {format, nullptr, nullptr, n, k};
  std::mt19937 rng(seed);
  w.data.resize(static_cast<size_t>(n * w.view.row_bytes()));
  w.scale.resize(static_cast<size_t>(w.view.total_bytes() - n * w.view.row_bytes()));
  for (uint8_t& b : w.data) b = static_cast<uint8_t>(rng());
  for (uint8_t& b : w.scale) b = static_cast<uint8_t>(120 + rng() % 10);
  w.view.data = w.data.data();
  w.view.scale = w.scale.empty() ? nullptr : w.scale.data();
  return w;
}

// The layout's words, read back from its description in weight_layout.h, must give the row-major bytes again.
TEST(WeightLayout, strips_hold_every_value_once_where_the_lanes_expect_it) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kFp8Block, WeightFormat::kMxfp4}) {
    const int64_t n = 48, k = 384, chunks = k / 128;
    const HostWeight w = random_weight(format, n, k, 7);
    std::vector<uint8_t> data(w.data.size(), 0xaa), scale(w.scale.size(), 0xaa);
    pack_strips(w.view, data.data(), scale.data());
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t col = 0; col < k; ++col) {
        const int64_t chunk = row / 16 * chunks + col / 128;
        const int g = static_cast<int>(row % 8), r = static_cast<int>(row % 16 / 8), c = static_cast<int>(col % 128), s = c / 16, t = c % 16 / 4, j = c % 4,
                  lane = 4 * g + t;
        if (format == WeightFormat::kFp8Block) {
          ASSERT_EQ(data[static_cast<size_t>(chunk * 2048 + s / 2 * 512 + lane * 16 + 8 * (s % 2) + 4 * r + j)], w.data[static_cast<size_t>(row * k + col)])
              << row << " " << col;
        } else if (format == WeightFormat::kBF16) {
          ASSERT_EQ(0, std::memcmp(&data[static_cast<size_t>(chunk * 4096 + s * 512 + lane * 16 + 2 * (4 * r + j))],
                                   &w.data[static_cast<size_t>(2 * (row * k + col))], 2));
        } else {
          const int q = c / 32, pair = 2 * (s % 2) + j / 2;
          uint32_t word;
          std::memcpy(&word, &data[static_cast<size_t>(chunk * 1024 + q / 2 * 512 + lane * 16 + 4 * (2 * (q % 2) + r))], 4);
          const uint32_t moved[4] = {word << 2, word << 6, word << 9, word >> 3};
          const uint32_t half = (word ^ moved[pair]) >> (16 * (j % 2));
          const uint32_t nibble = (half >> 9 & 7u) | (half >> 15 & 1u) << 3;
          const uint8_t byte = w.data[static_cast<size_t>((row * k + col) / 2)];
          ASSERT_EQ(nibble, col % 2 == 0 ? byte & 15u : byte >> 4) << row << " " << col;
          ASSERT_EQ(scale[static_cast<size_t>(chunk * 64 + 8 * g + 4 * r + q)], w.scale[static_cast<size_t>(row * (k / 32) + col / 32)]);
        }
      }
    }
  }
}

// A pair is two float16 values times 2^-14, whatever the other pairs of its word are.
TEST(WeightLayout, an_mxfp4_pair_is_float16_after_one_shift_and_mask) {
  std::mt19937 rng(5);
  for (int round = 0; round < 4096; ++round) {
    uint32_t codes[4][2], word = 0;
    for (int pair = 0; pair < 4; ++pair) {
      for (uint32_t& code : codes[pair]) code = rng() % 16;
      word ^= strip_mxfp4_bits(pair, codes[pair][0], codes[pair][1]);
    }
    for (int pair = 0; pair < 4; ++pair) {
      for (int i = 0; i < 2; ++i) {
        const uint32_t half = strip_mxfp4_pair(word, pair) >> (16 * i) & 0xffffu, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
        const double size = std::ldexp(exponent == 0 ? mantissa / 512.0 : 1 + mantissa / 1024.0, static_cast<int>(exponent) - 15);
        ASSERT_EQ((half & 0x8000u ? -size : size) * 16384.0, static_cast<double>(e2m1_to_float(static_cast<uint8_t>(codes[pair][i])))) << pair << " " << i;
      }
    }
  }
}

TEST(KernelPlan, is_pure_and_reads_well) {
  EXPECT_EQ(describe_plan({1, 32768, 1024, WeightFormat::kFp8Block, ActivationRounding::kE4M3}, true, 132),
            "M=1 N=32768 K=1024 fp8_block e4m3: row_strip, 1 term, 264 blocks");
  EXPECT_EQ(describe_plan({16, 4096, 8192, WeightFormat::kFp8Block, ActivationRounding::kE4M3}, true, 132),
            "M=16 N=4096 K=8192 fp8_block e4m3: tile, 1 term, 16 rows a pass, k split 8, 256 blocks");
  EXPECT_EQ(describe_plan({64, 129280, 4096, WeightFormat::kBF16, ActivationRounding::kNone}, true, 132),
            "M=64 N=129280 K=4096 bf16 f32: tile, 3 terms, 64 rows a pass, k split 1, 1010 blocks");
  EXPECT_EQ(describe_plan({64, 4096, 8192, WeightFormat::kFp8Block, ActivationRounding::kE4M3}, true, 132),
            "M=64 N=4096 K=8192 fp8_block e4m3: tile, 1 term, 32 rows a pass, k split 4, 256 blocks");
  EXPECT_EQ(describe_plan({2048, 4096, 8192, WeightFormat::kFp8Block, ActivationRounding::kE4M3}, true, 132),
            "M=2048 N=4096 K=8192 fp8_block e4m3: folded, 1 term, 256 blocks");
  EXPECT_EQ(describe_plan({2048, 4096, 8192, WeightFormat::kFp8Block, ActivationRounding::kBF16}, true, 132),
            "M=2048 N=4096 K=8192 fp8_block bf16: folded, 1 term, 256 blocks");
  EXPECT_EQ(describe_plan({1, 10, 100, WeightFormat::kBF16, ActivationRounding::kNone}, true, 132), "M=1 N=10 K=100 bf16 f32: portable, 2 blocks");
  EXPECT_EQ(describe_plan({1, 16, 128, WeightFormat::kFp8Block, ActivationRounding::kNone}, false, 80), "M=1 N=16 K=128 fp8_block f32: portable, 2 blocks");
}

TEST(KernelPlan, of_experts) {
  const auto plan = [](int64_t rows, int64_t n) { return describe_experts({rows, n, 4096, WeightFormat::kMxfp4, ActivationRounding::kE4M3}, true); };
  EXPECT_EQ(plan(1, 2048), "M=1 N=2048 K=4096 mxfp4 e4m3: experts_row, 1 term");
  EXPECT_EQ(plan(2, 2048), "M=2 N=2048 K=4096 mxfp4 e4m3: experts_stream, rows gathered by expert, 1 term");
  EXPECT_EQ(plan(65, 2048), "M=65 N=2048 K=4096 mxfp4 e4m3: experts_tile, rows gathered by expert, 1 term");
  EXPECT_EQ(plan(512, 2048), "M=512 N=2048 K=4096 mxfp4 e4m3: experts_wide, rows gathered by expert, 1 term");
  EXPECT_EQ(plan(1, 2040), "M=1 N=2040 K=4096 mxfp4 e4m3: portable");
}

TEST(GpuDevice, without_a_gpu_the_reason_is_a_sentence) {
  const std::string reason = gpu_unavailable_reason();
  if (reason.empty()) GTEST_SKIP() << "a GPU is here";
  EXPECT_EQ(reason.substr(0, 4), "gpu:");
  const auto device = make_gpu_device({});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(device.status().message(), reason);
}

TEST_F(OnGpu, index_beyond_the_last_device_is_refused) {
  const auto device = make_gpu_device({.index = 99});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(OnGpu, bytes_come_back_as_they_went) {
  std::vector<uint8_t> sent(40 << 20), got(sent.size());
  std::mt19937 rng(3);
  for (uint8_t& b : sent) b = static_cast<uint8_t>(rng());
  auto a = device_->allocate(static_cast<int64_t>(sent.size()), "a");
  auto b = device_->allocate(static_cast<int64_t>(sent.size()), "b");
  ASSERT_TRUE(a.ok() && b.ok());
  std::vector<uint8_t> reused = sent;
  ASSERT_TRUE(device_->upload(a->as<void>(), reused.data(), static_cast<int64_t>(sent.size())).ok());
  std::fill(reused.begin(), reused.end(), 0);  // the source may be reused at once
  ASSERT_TRUE(device_->copy(b->as<void>(), a->as<void>(), static_cast<int64_t>(sent.size())).ok());
  ASSERT_TRUE(device_->download(got.data(), b->as<void>(), static_cast<int64_t>(got.size())).ok());
  EXPECT_EQ(sent, got);
  ASSERT_TRUE(device_->zero(b->as<uint8_t>() + 5, 1000).ok());
  ASSERT_TRUE(device_->download(got.data(), b->as<void>(), 1010).ok());
  EXPECT_EQ(got[4], sent[4]);
  EXPECT_EQ(std::accumulate(got.begin() + 5, got.begin() + 1005, 0), 0);
  EXPECT_EQ(got[1005], sent[1005]);
}

TEST_F(OnGpu, too_much_memory_names_what_it_was_for) {
  const auto r = device_->allocate(int64_t{1} << 50, "cache");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), StatusCode::kResourceLimit);
  EXPECT_EQ(r.status().message().substr(0, 6), "cache:");
  EXPECT_TRUE(device_->synchronize().ok());  // the device is still good
}

TEST_F(OnGpu, placed_weights_lie_in_strips_as_the_host_packs_them) {
  if (device_->info().name.find("portable") != std::string::npos) GTEST_SKIP() << "this card keeps weights row-major";
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kFp8Block, WeightFormat::kMxfp4}) {
    const HostWeight w = random_weight(format, 272, 640, 11);
    DeviceBuffer storage;
    auto placed = device_->place_weight(w.view, "w", &storage);
    ASSERT_TRUE(placed.ok()) << placed.status().message();
    std::vector<uint8_t> want(w.data.size()), want_scale(w.scale.size()), got(w.data.size()), got_scale(w.scale.size());
    pack_strips(w.view, want.data(), want_scale.data());
    ASSERT_TRUE(device_->download(got.data(), placed->data, static_cast<int64_t>(got.size())).ok());
    EXPECT_EQ(got, want) << weight_format_name(format);
    if (!got_scale.empty()) {
      ASSERT_TRUE(device_->download(got_scale.data(), placed->scale, static_cast<int64_t>(got_scale.size())).ok());
      EXPECT_EQ(got_scale, want_scale) << weight_format_name(format);
    }
  }
}

// Generated on the device = the formula's words on the host, in place and as a placed weight; sizes that are no whole words too.
TEST_F(OnGpu, generated_tensors_are_the_hosts_bytes) {
  const auto host = [](const SyntheticRule& rule, int64_t size_bytes) {
    std::vector<uint8_t> out(static_cast<size_t>(size_bytes));
    for (int64_t i = 0; i < size_bytes; ++i) out[static_cast<size_t>(i)] = static_cast<uint8_t>(synthetic_word(rule, i / 8) >> (8 * (i % 8)));
    return out;
  };
  ASSERT_TRUE(device_->generates());
  const SyntheticRule codes{synthetic_base(1, "a"), ~uint64_t{0}, 0, 0, 0}, fp8{synthetic_base(1, "b"), 0x9f9f9f9f9f9f9f9full, 0x2020202020202020ull, 0, 0},
      scales{synthetic_base(2, "b"), 0x0101010101010101ull, 0x7878787878787878ull, 0, 0}, ids{synthetic_base(3, "c"), 0, 0, 160, 6};
  for (const auto& [rule, size_bytes] : {std::pair{codes, int64_t{100003}}, {ids, int64_t{8 * 6 * 1000}}, {fp8, int64_t{3}}}) {
    auto buffer = device_->allocate(size_bytes, "generated");
    ASSERT_TRUE(buffer.ok());
    ASSERT_TRUE(device_->generate(buffer->as<void>(), rule, size_bytes).ok());
    std::vector<uint8_t> got(static_cast<size_t>(size_bytes));
    ASSERT_TRUE(device_->download(got.data(), buffer->as<void>(), size_bytes).ok());
    EXPECT_EQ(got, host(rule, size_bytes)) << size_bytes;
  }
  // Through the same repacking, the larger one in two pieces.
  for (const auto& [format, n, k] : {std::tuple{WeightFormat::kMxfp4, int64_t{272}, int64_t{640}},
                                     {WeightFormat::kFp8Block, int64_t{17024}, int64_t{4096}},
                                     {WeightFormat::kBF16, int64_t{24}, int64_t{100}}}) {
    GeneratedWeight weight{{format, nullptr, nullptr, n, k}, format == WeightFormat::kMxfp4 ? codes : fp8, scales};
    const int64_t data_bytes = n * weight.shape.row_bytes(), scale_bytes = weight.shape.total_bytes() - data_bytes;
    const std::vector<uint8_t> data = host(weight.data, data_bytes), scale = host(scales, scale_bytes);
    WeightView view = weight.shape;
    view.data = data.data();
    view.scale = scale_bytes == 0 ? nullptr : scale.data();
    DeviceBuffer kept_made, kept_placed;
    auto made = device_->place_generated(weight, "w", &kept_made), placed = device_->place_weight(view, "w", &kept_placed);
    ASSERT_TRUE(made.ok() && placed.ok());
    std::vector<uint8_t> a(static_cast<size_t>(data_bytes)), b(a.size());
    ASSERT_TRUE(device_->download(a.data(), made->data, data_bytes).ok());
    ASSERT_TRUE(device_->download(b.data(), placed->data, data_bytes).ok());
    EXPECT_EQ(a, b) << weight_format_name(format);
    if (scale_bytes == 0) continue;
    a.resize(static_cast<size_t>(scale_bytes)), b.resize(a.size());
    ASSERT_TRUE(device_->download(a.data(), made->scale, scale_bytes).ok());
    ASSERT_TRUE(device_->download(b.data(), placed->scale, scale_bytes).ok());
    EXPECT_EQ(a, b) << weight_format_name(format);
  }
}

// Pieces of a slab are their own memory; a slab goes when its last piece does.
TEST_F(OnGpu, weights_share_large_allocations) {
  std::vector<DeviceBuffer> kept(3);
  std::vector<HostWeight> weights;
  std::vector<WeightView> placed;
  for (uint32_t i = 0; i < 3; ++i) {
    weights.push_back(random_weight(WeightFormat::kBF16, 9, 33, i));  // stays row-major
    placed.push_back(device_->place_weight(weights.back().view, "w", &kept[i]).value());
  }
  kept[1] = DeviceBuffer();
  for (const size_t i : {size_t{0}, size_t{2}}) {
    std::vector<uint8_t> got(weights[i].data.size());
    ASSERT_TRUE(device_->download(got.data(), placed[i].data, static_cast<int64_t>(got.size())).ok());
    EXPECT_EQ(got, weights[i].data) << i;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(placed[i].data) % 256, 0u);
  }
  EXPECT_LT(placed[2].data - placed[0].data, int64_t{2} << 20);
}

std::vector<float> random_values(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = normal(rng);
  return v;
}
double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

// Device memory with contents, kept until the end of a test.
class Holder {
 public:
  explicit Holder(Device& device) : device_(device) {}
  template <class T>
  T* put(const std::vector<T>& values) {
    const auto size_bytes = static_cast<int64_t>(values.size() * sizeof(T));
    buffers_.push_back(device_.allocate(size_bytes, "test").value());
    EXPECT_TRUE(device_.upload(buffers_.back().as<void>(), values.data(), size_bytes).ok());
    return buffers_.back().as<T>();
  }
  WeightView put(const HostWeight& w) {
    buffers_.emplace_back();
    return device_.place_weight(w.view, "w", &buffers_.back()).value();
  }

 private:
  Device& device_;
  std::vector<DeviceBuffer> buffers_;
};

// From 256 rows on, products run on kernels whose order of additions the shared suite, which wants a row's bits alone, does not meet.
TEST_F(OnGpu, products_of_many_rows_agree_with_the_portable_kernels) {
  const auto portable = make_gpu_device({.portable_only = true});
  ASSERT_TRUE(portable.ok());
  constexpr int64_t kRows = 300, kK = 384, kN = 272;  // three passes, a tile of 128 weight rows that is not full
  HostWeight weight = random_weight(WeightFormat::kFp8Block, kN, kK, 3);
  for (uint8_t& code : weight.data) {
    if ((code & 0x7f) == 0x7f) code = 0;  // NaN
  }
  const std::vector<float> x = random_values(kRows * kK, 4);
  for (const ActivationRounding rounding : {ActivationRounding::kE4M3, ActivationRounding::kNone}) {
    std::vector<float> results[2];
    for (int i = 0; i < 2; ++i) {
      Device& device = i == 0 ? *device_ : *portable.value();
      Holder held(device);
      float* y = held.put(std::vector<float>(kRows * kN, 7.0f));
      const LinearArgs args{Matrix<const float>(held.put(x), kRows, kK), rounding, 1, {{held.put(weight), Matrix<float>(y, kRows, kN)}}};
      ASSERT_TRUE(run_op("linear", device.context(), device.ops().linear, args).ok());
      results[i].resize(kRows * kN);
      ASSERT_TRUE(device.download(results[i].data(), y, kRows * kN * 4).ok());
    }
    EXPECT_LT(relative_l2(results[0], results[1]), 2e-6) << static_cast<int>(rounding);
  }
}

TEST_F(OnGpu, experts_of_many_rows_agree_with_the_portable_kernels) {
  const auto portable = make_gpu_device({.portable_only = true});
  ASSERT_TRUE(portable.ok());
  constexpr int64_t kRows = 300, kTopk = 2, kExperts = 5, kHidden = 256, kFfn = 384;  // about 120 pairs an expert: a full unit and a part of one
  std::vector<HostWeight> weights;
  for (uint32_t e = 0; e < kExperts; ++e) {
    for (const bool down : {false, false, true}) {
      weights.push_back(random_weight(WeightFormat::kMxfp4, down ? kHidden : kFfn, down ? kFfn : kHidden, 10 + static_cast<uint32_t>(weights.size())));
    }
  }
  const std::vector<float> x = random_values(kRows * kHidden, 4), y0 = random_values(kRows * kHidden, 5), routing(kRows * kTopk, 0.25f);
  std::vector<int32_t> experts;
  for (int32_t t = 0; t < kRows; ++t) {
    experts.push_back(t % 7 == 3 ? -1 : t % static_cast<int32_t>(kExperts));
    experts.push_back((t + 1 + t / 5 % 4) % static_cast<int32_t>(kExperts));
  }
  std::vector<float> results[2];
  for (int i = 0; i < 2; ++i) {
    Device& device = i == 0 ? *device_ : *portable.value();
    Holder held(device);
    std::vector<const uint8_t*> pointers[6];
    for (size_t w = 0; w < weights.size(); ++w) {
      const WeightView placed = held.put(weights[w]);
      pointers[2 * (w % 3)].push_back(placed.data);
      pointers[2 * (w % 3) + 1].push_back(placed.scale);
    }
    const auto table = [&](int p) { return const_cast<const uint8_t* const*>(held.put(pointers[p])); };
    float* y = held.put(y0);
    const MoeExpertsArgs args{Matrix<const float>(held.put(x), kRows, kHidden),
                              {WeightFormat::kMxfp4, kExperts, kHidden, kFfn, table(0), table(1), table(2), table(3), table(4), table(5)},
                              Matrix<const int32_t>(held.put(experts), kRows, kTopk),
                              Matrix<const float>(held.put(routing), kRows, kTopk),
                              10.0f,
                              ActivationRounding::kE4M3,
                              Matrix<float>(y, kRows, kHidden)};
    ASSERT_TRUE(run_op("moe_experts", device.context(), device.ops().moe_experts, args).ok());
    results[i].resize(kRows * kHidden);
    ASSERT_TRUE(device.download(results[i].data(), y, kRows * kHidden * 4).ok());
  }
  // Single activations may round the other way.
  EXPECT_LT(relative_l2(results[0], results[1]), 1e-3);
}

// A recorded step gives each input its own answer, whatever ran before: A, B, A.
TEST_F(OnGpu, a_recorded_step_follows_its_inputs) {
  const int64_t n = 256, k = 512;
  const HostWeight w = random_weight(WeightFormat::kFp8Block, n, k, 5);
  DeviceBuffer storage;
  std::vector<uint8_t> safe = w.data;
  for (uint8_t& b : safe) b = (b & 0x7f) == 0x7f ? 0 : b;
  WeightView view = w.view;
  view.data = safe.data();
  auto placed = device_->place_weight(view, "w", &storage);
  ASSERT_TRUE(placed.ok());
  auto x = device_->allocate(4 * k, "x");
  auto y = device_->allocate(4 * n, "y");
  ASSERT_TRUE(x.ok() && y.ok());
  LinearArgs args{Matrix<const float>(x->as<float>(), 1, k), ActivationRounding::kE4M3, 1, {{*placed, Matrix<float>(y->as<float>(), 1, n)}}};
  const auto run = [&] { return run_op("linear", device_->context(), device_->ops().linear, args); };
  auto graph = device_->capture(run, CaptureMode::kWhole);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  ASSERT_NE(*graph, nullptr);
  std::vector<std::vector<float>> inputs(2, std::vector<float>(k)), eager;
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  for (auto& v : inputs) {
    for (float& f : v) f = normal(rng);
    std::vector<float> out(n);
    ASSERT_TRUE(device_->upload(x->as<void>(), v.data(), 4 * k).ok());
    ASSERT_TRUE(run().ok());
    ASSERT_TRUE(device_->download(out.data(), y->as<void>(), 4 * n).ok());
    eager.push_back(out);
  }
  ASSERT_NE(eager[0], eager[1]);
  for (const int i : {0, 1, 0}) {
    std::vector<float> out(n);
    ASSERT_TRUE(device_->zero(y->as<void>(), 4 * n).ok());
    ASSERT_TRUE(device_->upload(x->as<void>(), inputs[static_cast<size_t>(i)].data(), 4 * k).ok());
    ASSERT_TRUE((*graph)->launch().ok());
    ASSERT_TRUE(device_->download(out.data(), y->as<void>(), 4 * n).ok());
    EXPECT_EQ(out, eager[static_cast<size_t>(i)]);
  }
  const auto failed = device_->capture([] { return invalid_argument("no"); }, CaptureMode::kWhole);
  EXPECT_EQ(failed.status().message(), "no");
  EXPECT_TRUE(device_->synchronize().ok());
}

// Branches of a recorded step: two products side by side, then what reads both, in the same graph or between two; the same bits as one after the
// other, on replays with other inputs too. The tile products of both branches use scratch.
TEST_F(OnGpu, branches_and_cuts_of_a_recorded_step_give_the_same_bits) {
  const int64_t n = 256, k = 512, rows = 5;
  std::vector<HostWeight> weights;
  DeviceBuffer storage[3];
  std::vector<WeightView> placed;
  for (uint32_t i = 0; i < 3; ++i) {
    weights.push_back(random_weight(WeightFormat::kFp8Block, i == 2 ? k : n, i == 2 ? n : k, 5 + i));
    for (uint8_t& b : weights.back().data) b = (b & 0x7f) == 0x7f ? 0 : b;
    placed.push_back(device_->place_weight(weights.back().view, "w", &storage[i]).value());
  }
  auto x = device_->allocate(4 * rows * k, "x"), a = device_->allocate(4 * rows * n, "a"), b = device_->allocate(4 * rows * n, "b"),
       y = device_->allocate(4 * rows * k, "y");
  ASSERT_TRUE(x.ok() && a.ok() && b.ok() && y.ok());
  const Matrix<float> mx(x->as<float>(), rows, k), ma(a->as<float>(), rows, n), mb(b->as<float>(), rows, n), my(y->as<float>(), rows, k);
  const auto product = [&](const Matrix<float>& in, const WeightView& w, const Matrix<float>& out) {
    return run_op("linear", device_->context(), device_->ops().linear, LinearArgs{in, ActivationRounding::kE4M3, 1, {{w, out}}});
  };
  const auto step = [&]() -> Status {
    DSV4_RETURN_IF_ERROR(device_->side_by_side([&] { return product(mx, placed[0], ma); }, [&] { return product(mx, placed[1], mb); }));
    const auto both = [&, ma, mb] { return run_op("swiglu", device_->context(), device_->ops().swiglu, SwigluArgs{ma, mb, 10.0f, ma}); };
    DSV4_RETURN_IF_ERROR(device_->outside_graph(both));
    return product(ma, placed[2], my);
  };
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  std::vector<float> in(static_cast<size_t>(rows * k)), want(in.size()), got(in.size());
  for (const CaptureMode mode : {CaptureMode::kWhole, CaptureMode::kPieces}) {
    const int64_t before = device_->kernels_launched(), between = mode == CaptureMode::kPieces ? 1 : 0;
    auto graph = device_->capture(step, mode);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    const int64_t recorded = device_->kernels_launched() - before + between;
    for (int round = 0; round < 20; ++round) {
      for (float& f : in) f = normal(rng);
      ASSERT_TRUE(device_->upload(x->as<void>(), in.data(), 4 * rows * k).ok());
      ASSERT_TRUE(step().ok());
      ASSERT_TRUE(device_->download(want.data(), y->as<void>(), 4 * rows * k).ok());
      ASSERT_TRUE(device_->zero(y->as<void>(), 4 * rows * k).ok());
      ASSERT_TRUE((*graph)->launch().ok());
      ASSERT_TRUE(device_->download(got.data(), y->as<void>(), 4 * rows * k).ok());
      ASSERT_EQ(got, want) << round;
    }
    // Replays are not counted, but for what runs between the pieces.
    EXPECT_EQ(device_->kernels_launched() - before, recorded - between + 20 * recorded + 20 * between);
  }
  // An error in either branch ends the capture and leaves the device good.
  for (const bool in_first : {true, false}) {
    const auto fine = [&] { return product(mx, placed[0], ma); };
    const auto bad = [] { return invalid_argument("no"); };
    const auto failed = device_->capture([&] { return in_first ? device_->side_by_side(bad, fine) : device_->side_by_side(fine, bad); }, CaptureMode::kWhole);
    EXPECT_EQ(failed.status().message(), "no");
    ASSERT_TRUE(step().ok());
    EXPECT_TRUE(device_->synchronize().ok());
  }
}

}  // namespace
}  // namespace dsv4
