// The CPU device itself, and exactness of its decodes on every code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_device.h"
#include "backends/cpu/kernels.h"
#include "tensor/dtype.h"

namespace dsv4 {
namespace {

using testing::HasSubstr;

std::vector<CpuIsa> available() {
  std::vector<CpuIsa> sets;
  for (const CpuIsa isa : kAllCpuIsas) {
    if (cpu_isa_available(isa)) sets.push_back(isa);
  }
  return sets;
}

CpuDeviceOptions with_isa(const char* isa, int threads) {
  CpuDeviceOptions options;
  options.num_threads = threads;
  options.isa = isa;
  return options;
}

// NaN equals NaN; everything else to the bit.
testing::AssertionResult same(float actual, float expected) {
  if (std::isnan(expected) ? std::isnan(actual) : std::bit_cast<uint32_t>(actual) == std::bit_cast<uint32_t>(expected)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << actual << " instead of " << expected;
}

TEST(CpuDevice, forced_isa_is_the_active_one) {
  for (const CpuIsa isa : available()) {
    auto device = make_cpu_device(with_isa(cpu_isa_name(isa), 2));
    ASSERT_TRUE(device.ok()) << device.status().message();
    EXPECT_THAT((*device)->info().name, HasSubstr(std::string("(") + cpu_isa_name(isa) + ", 2 threads)"));
    EXPECT_EQ(cpu_context((*device)->context()).kernels->isa, isa);
    EXPECT_EQ(first_missing_op((*device)->ops()), nullptr);
  }
}

TEST(CpuDevice, isas_are_different_code) {
  const std::vector<CpuIsa> sets = available();
  for (size_t i = 0; i < sets.size(); ++i) {
    for (size_t j = i + 1; j < sets.size(); ++j) {
      EXPECT_NE(cpu_kernels(sets[i]).product, cpu_kernels(sets[j]).product) << cpu_isa_name(sets[i]) << " and " << cpu_isa_name(sets[j]);
    }
  }
}

TEST(CpuDevice, default_isa_is_the_best_one) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) GTEST_SKIP() << "this machine has no AVX2";
  const auto isa = choose_cpu_isa("");
  ASSERT_TRUE(isa.ok());
  EXPECT_NE(*isa, CpuIsa::kScalar);
#endif
}

TEST(CpuDevice, unknown_and_missing_isas_are_refused) {
  const auto unknown = make_cpu_device(with_isa("mmx", 1));
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.status().message(), HasSubstr("'mmx'"));
  for (const CpuIsa isa : kAllCpuIsas) {
    if (cpu_isa_available(isa)) continue;
    const auto missing = make_cpu_device(with_isa(cpu_isa_name(isa), 1));
    EXPECT_EQ(missing.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(missing.status().message(), HasSubstr(cpu_isa_name(isa)));
  }
}

TEST(CpuDevice, buffers_with_huge_pages) {
  CpuDeviceOptions options = with_isa("scalar", 1);
  options.huge_pages = true;
  auto device = make_cpu_device(options);
  ASSERT_TRUE(device.ok());
  auto buffer = (*device)->allocate(5 << 20, "test");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->as<uint8_t>()) % 256, 0u);
  ASSERT_TRUE((*device)->zero(buffer->as<uint8_t>(), 5 << 20).ok());
  EXPECT_EQ(buffer->as<uint8_t>()[(5 << 20) - 1], 0);
}

// On a thread of its own: the policy is the thread's.
TEST(CpuDevice, numa_policy) {
  std::thread([] {
    for (const std::string policy : {"interleave", "0"}) {
      CpuDeviceOptions options = with_isa("scalar", 1);
      options.numa = policy;
      const auto device = make_cpu_device(options);
      if (!device.ok()) EXPECT_EQ(device.status().code(), StatusCode::kUnsupported) << device.status().message();  // a container may forbid it
    }
    CpuDeviceOptions options = with_isa("scalar", 1);
    for (const auto& [policy, message] :
         {std::pair<std::string, std::string>{"everywhere", "'everywhere'"}, {"63", "no node 63"}, {"-1", "'-1'"}, {"0x", "'0x'"}}) {
      options.numa = policy;
      const auto device = make_cpu_device(options);
      EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(device.status().message(), HasSubstr(message));
    }
  }).join();
}

// All 256 E4M3 codes under all 256 scales, through the reader of cache rows.
TEST(CpuDecode, cache_rows_are_exact_on_every_code_and_scale) {
  for (const CpuIsa isa : available()) {
    const CpuKernels kernels = cpu_kernels(isa);
    std::vector<uint8_t> block(static_cast<size_t>(block_bytes(RowFormat::kFp8DsMla, 64, kMlaRowDim)));
    const PagedRows rows{RowFormat::kFp8DsMla, block.data(), static_cast<int64_t>(block.size()), 64, kMlaRowDim};
    std::vector<float> chunk(static_cast<size_t>(DecodedKeys::floats(kChunkKeys, kMlaRowDim))), expected(kMlaRowDim);
    const DecodedKeys keys(chunk.data(), kChunkKeys);
    for (int scale = 0; scale < 256; ++scale) {
      for (int half = 0; half < 2; ++half) {  // 448 values: codes 0..255 and 0..191, then shifted
        for (int i = 0; i < 448; ++i) block[static_cast<size_t>(i)] = static_cast<uint8_t>(i + 64 * half);
        for (int i = 0; i < 128; ++i) block[static_cast<size_t>(448 + i)] = static_cast<uint8_t>(37 * i + scale);
        for (int g = 0; g < 7; ++g) block[static_cast<size_t>(64 * kMlaDataBytes + g)] = static_cast<uint8_t>(scale + g);
        kernels.read_key(rows, 0, 0, keys, 5);
        read_row(rows, 0, 0, expected.data());
        for (int64_t d = 0; d < kMlaRowDim; ++d) {
          const float actual = keys.values[d / kSliceDim * keys.slice_stride + 5 * kSliceDim + d % kSliceDim];
          ASSERT_TRUE(same(actual, expected[static_cast<size_t>(d)])) << cpu_isa_name(isa) << ", scale " << scale << ", value " << d;
        }
      }
    }
  }
}

TEST(CpuDecode, indexer_rows_are_exact_on_every_code_and_scale) {
  for (const CpuIsa isa : available()) {
    const CpuKernels kernels = cpu_kernels(isa);
    std::vector<uint8_t> block(static_cast<size_t>(block_bytes(RowFormat::kMxfp4, 2, 128)));
    const PagedRows rows{RowFormat::kMxfp4, block.data(), static_cast<int64_t>(block.size()), 2, 128};
    std::vector<float> chunk(static_cast<size_t>(DecodedKeys::floats(8, 128))), expected(128);
    const DecodedKeys keys(chunk.data(), 8);
    for (int scale = 0; scale < 256; ++scale) {
      for (int i = 0; i < 64; ++i) block[static_cast<size_t>(64 + i)] = static_cast<uint8_t>(i * 4 + i / 16);
      for (int g = 0; g < 4; ++g) block[static_cast<size_t>(2 * 64 + 4 + g)] = static_cast<uint8_t>(scale + g);
      kernels.read_key(rows, 0, 1, keys, 0);
      read_row(rows, 0, 1, expected.data());
      for (int64_t d = 0; d < 128; ++d) {
        ASSERT_TRUE(same(keys.values[d / kSliceDim * keys.slice_stride + d % kSliceDim], expected[static_cast<size_t>(d)]))
            << cpu_isa_name(isa) << ", scale " << scale << ", value " << d;
      }
    }
  }
}

// A weight seen through products with unit vectors: exactly the decoded values, NaN where a code is NaN, for one row and for many.
void expect_exact_products(const WeightView& w, const char* what) {
  std::vector<float> decoded(static_cast<size_t>(w.k));
  for (const CpuIsa isa : available()) {
    const CpuKernels kernels = cpu_kernels(isa);
    for (const int64_t rows : {1, 2, 8, 12}) {
      for (int64_t k = 0; k < w.k; k += 7) {
        std::vector<float> x(static_cast<size_t>(rows * w.k)), y(static_cast<size_t>(rows * w.n)), packed(static_cast<size_t>(PackedRows::floats(rows, w.k)));
        for (int64_t r = 0; r < rows; ++r) x[static_cast<size_t>(r * w.k + k)] = 1.0f;
        Product p{.weight = w, .weight_row_bytes = w.row_bytes(), .x = PackedRows::blocked(packed.data(), rows), .rows = rows, .y = y.data(), .y_stride = w.n};
        for (int64_t r = 0; r < rows; ++r) kernels.pack_row(x.data() + r * w.k, w.k, ActivationRounding::kNone, pack_order(w.format), p.x, r);
        kernels.product(p, 0, w.n, 0, rows);
        for (int64_t n = 0; n < w.n; ++n) {
          decode_weight_row(w, n, decoded.data());
          float expected = decoded[static_cast<size_t>(k)];
          // 0 * NaN and 0 * inf elsewhere in the row are NaN, as in any sum.
          for (int64_t i = 0; i < w.k; ++i) {
            if (!std::isfinite(decoded[static_cast<size_t>(i)]) && i != k) expected = std::nanf("");
          }
          if (expected == 0.0f) expected = 0.0f;  // the sum of zeros is +0
          for (int64_t r = 0; r < rows; ++r) {
            ASSERT_TRUE(same(y[static_cast<size_t>(r * w.n + n)], expected))
                << what << " " << cpu_isa_name(isa) << " rows " << rows << " k " << k << " n " << n;
          }
        }
      }
    }
  }
}

TEST(CpuDecode, fp8_weights_are_exact_on_every_code_and_scale) {
  // Rows 0..126 (one scale block): code sets without NaN; then rows with a NaN each; scales cover the folded and the large range.
  const int64_t n = 130, k = 256;
  std::vector<uint8_t> data(static_cast<size_t>(n * k)), scale = {0, 120, 246, 247};
  for (int64_t i = 0; i < n * k; ++i) {
    uint8_t code = static_cast<uint8_t>(i % 256 + i / 256);
    if ((code & 0x7f) == 0x7f) code = 0x41;
    data[static_cast<size_t>(i)] = code;
  }
  data[static_cast<size_t>(5 * k + 11)] = 0x7f;
  data[static_cast<size_t>(128 * k + 255)] = 0xff;
  expect_exact_products({WeightFormat::kFp8Block, data.data(), scale.data(), n, k}, "fp8");
  scale = {255, 254, 1, 127};
  expect_exact_products({WeightFormat::kFp8Block, data.data(), scale.data(), n, k}, "fp8, extreme scales");
}

TEST(CpuDecode, mxfp4_weights_are_exact_on_every_code_and_scale) {
  const int64_t n = 64, k = 128;
  std::vector<uint8_t> data(static_cast<size_t>(n * k / 2)), scale(static_cast<size_t>(n * k / 32));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 5 + i / 256);
  for (size_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<uint8_t>(i);
  expect_exact_products({WeightFormat::kMxfp4, data.data(), scale.data(), n, k}, "mxfp4");
}

// Largest error of the exponential (through swiglu: silu(g) * 1 = g / (1 + e^-g)) against the true value.
TEST(CpuMath, sigmoid_is_within_three_ulp) {
  for (const CpuIsa isa : available()) {
    const CpuKernels kernels = cpu_kernels(isa);
    double worst = 0;
    for (float g = -87.0f; g < 80.0f; g += 0.0137f) {
      const float up = 1.0f;
      float out = 0;
      kernels.swiglu_row(&g, &up, 1, 100.0f, &out);
      const double truth = static_cast<double>(g) / (1.0 + std::exp(-static_cast<double>(g)));
      worst = std::max(worst, std::fabs(out - truth) / std::fabs(truth) * 0x1p23);
    }
    EXPECT_LT(worst, 3.0) << cpu_isa_name(isa);
    EXPECT_GT(worst, 0.0) << "nothing was compared";
  }
}

TEST(CpuMath, swiglu_extremes) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const CpuIsa isa : available()) {
    const float gate[] = {0.0f, -200.0f, -inf, inf, nan, 1.0f, 1.0f}, up[] = {1.0f, 1.0f, 1.0f, -inf, 1.0f, nan, 2.0f};
    float out[7];
    cpu_kernels(isa).swiglu_row(gate, up, 7, 10.0f, out);
    EXPECT_EQ(out[0], 0.0f);
    EXPECT_EQ(out[1], 0.0f);
    EXPECT_TRUE(std::isnan(out[2])) << out[2];  // -inf * sigmoid(-inf) = -inf * 0
    EXPECT_NEAR(out[3], -99.9955f, 1e-3f);
    EXPECT_TRUE(std::isnan(out[4]));
    EXPECT_TRUE(std::isnan(out[5]));
    EXPECT_NEAR(out[6], 1.4621172f, 1e-6f);
  }
}

}  // namespace
}  // namespace dsv4
