#include "cache/paged_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/rounding.h"

namespace dsv4 {
namespace {

constexpr int64_t kFieldStride = 1002240;  // the stride a shared arena was seen with in the field

struct Arena {
  explicit Arena(RowFormat format, int64_t row_dim, int64_t stride) : bytes(static_cast<size_t>(3 * stride), 0xcd) {
    rows = {format, bytes.data(), stride, kCacheBlockRows, static_cast<int32_t>(row_dim)};
  }
  std::vector<uint8_t> bytes;
  PagedRows rows;
};

std::vector<float> random_row(uint32_t seed, int64_t n) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& v : row) v = normal(rng);
  return row;
}

// Seed fact 1: these scale bytes are 2^-9, 2^-8, 2^-8, 2^-8, 2^-9, 2^-8, 2^-9, and the pad byte is not a scale.
TEST(Fp8DsMla, seed_scale_bytes_decode) {
  Arena a(RowFormat::kFp8DsMla, 512, kFieldStride);
  const uint8_t scales[8] = {118, 119, 119, 119, 118, 119, 118, 0};
  uint8_t* block1 = a.bytes.data() + kFieldStride;
  std::memset(block1 + 5 * 576, 0x38, 448);  // token 5: every E4M3 value is 1.0
  std::memset(block1 + 5 * 576 + 448, 0, 128);
  std::memcpy(block1 + 64 * 576 + 5 * 8, scales, 8);
  float row[512];
  read_row(a.rows, 1, 5, row);
  const int exponents[7] = {-9, -8, -8, -8, -9, -8, -9};
  for (int g = 0; g < 7; ++g) {
    for (int i = 0; i < 64; ++i) ASSERT_EQ(row[g * 64 + i], std::ldexp(1.0f, exponents[g])) << g;
  }
}

// Seed fact 2: every E4M3 code decodes exactly through the cache.
TEST(Fp8DsMla, all_256_codes_exact) {
  Arena a(RowFormat::kFp8DsMla, 512, block_bytes(RowFormat::kFp8DsMla, 64, 512));
  std::memset(a.bytes.data() + 64 * 576, 127, 64 * 8);
  for (int c = 0; c < 256; ++c) a.bytes[static_cast<size_t>(c)] = static_cast<uint8_t>(c);
  float row[512];
  read_row(a.rows, 0, 0, row);
  for (int c = 0; c < 256; ++c) {
    const int e = (c >> 3) & 15, m = c & 7;
    if ((c & 127) == 127) {
      EXPECT_TRUE(std::isnan(row[c]));
      continue;
    }
    const double want = (c & 128 ? -1 : 1) * (e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10));
    EXPECT_EQ(row[c], want) << c;
  }
}

// A reader of the wrong layout: 584 contiguous bytes per token (576 data, 8 scales).
void read_row_584(const PagedRows& rows, int64_t block, int64_t offset, float* values) {
  const uint8_t* data = rows.base + block * rows.block_stride_bytes + offset * 584;
  for (int64_t i = 0; i < kMlaNopeDim; ++i) values[i] = e4m3_to_float(data[i]) * e8m0_to_float(data[576 + i / 64]);
  for (int64_t i = 0; i < kMlaRopeDim; ++i) {
    uint16_t b;
    std::memcpy(&b, data + kMlaNopeDim + 2 * i, 2);
    values[kMlaNopeDim + i] = bf16_to_float(b);
  }
}

// Seed fact 3: the wrong reader must not pass for the right one; a whole block is compared, as one token alone could hide it.
TEST(Fp8DsMla, a_reader_of_584_byte_tokens_fails) {
  Arena a(RowFormat::kFp8DsMla, 512, kFieldStride);
  int wrong_rows = 0;
  for (int t = 0; t < 64; ++t) {
    const auto values = random_row(static_cast<uint32_t>(t), 512);
    write_row(a.rows, 2, t, values.data());
  }
  for (int t = 0; t < 64; ++t) {
    auto want = random_row(static_cast<uint32_t>(t), 512);
    round_e4m3(want.data(), kMlaNopeDim, 64, want.data());
    round_bf16(want.data() + kMlaNopeDim, kMlaRopeDim, want.data() + kMlaNopeDim);
    float right[512], wrong[512];
    read_row(a.rows, 2, t, right);
    read_row_584(a.rows, 2, t, wrong);
    ASSERT_EQ(0, std::memcmp(right, want.data(), sizeof(right))) << t;
    wrong_rows += std::memcmp(wrong, want.data(), sizeof(wrong)) != 0;
  }
  EXPECT_EQ(wrong_rows, 64);
}

TEST(PagedRows, neighbours_and_gaps_are_untouched) {
  for (const RowFormat format : {RowFormat::kF32, RowFormat::kFp8DsMla, RowFormat::kMxfp4}) {
    const int64_t dim = format == RowFormat::kMxfp4 ? 128 : 512;
    const int64_t need = block_bytes(format, 64, dim), stride = need + 96;
    Arena a(format, dim, stride);
    const std::vector<uint8_t> before = a.bytes;
    write_row(a.rows, 1, 63, random_row(1, dim).data());
    const int64_t data = row_data_offset(a.rows, 1, 63), scale = row_scale_offset(a.rows, 1, 63);
    const int64_t data_bytes = format == RowFormat::kF32 ? dim * 4 : format == RowFormat::kFp8DsMla ? 576 : dim / 2;
    const int64_t scale_bytes = format == RowFormat::kF32 ? 0 : format == RowFormat::kFp8DsMla ? 8 : dim / 32;
    for (int64_t i = 0; i < 3 * stride; ++i) {
      const bool mine = (i >= data && i < data + data_bytes) || (i >= scale && i < scale + scale_bytes);
      if (!mine) {
        ASSERT_EQ(a.bytes[static_cast<size_t>(i)], before[static_cast<size_t>(i)]) << row_format_name(format) << " byte " << i;
      }
    }
    EXPECT_EQ(data + data_bytes <= 2 * stride, true);
  }
}

TEST(PagedRows, mxfp4_round_trip_is_the_e2m1_rounding) {
  Arena a(RowFormat::kMxfp4, 128, block_bytes(RowFormat::kMxfp4, 64, 128));
  auto want = random_row(3, 128);
  write_row(a.rows, 0, 7, want.data());
  float got[128];
  read_row(a.rows, 0, 7, got);
  round_e2m1(want.data(), 128, 32, want.data());
  EXPECT_EQ(0, std::memcmp(got, want.data(), sizeof(got)));
}

TEST(PagedRows, check_names_the_stride) {
  uint8_t byte = 0;
  EXPECT_EQ(check_paged_rows("kv", {RowFormat::kFp8DsMla, &byte, 37000, 64, 512}).message(),
            "kv: block stride is 37000 bytes, a block of fp8_ds_mla needs 37376");
  EXPECT_FALSE(check_paged_rows("kv", {RowFormat::kFp8DsMla, &byte, 99999, 64, 128}).ok());
}

}  // namespace
}  // namespace dsv4
