// Which kernel a product takes, as a pure function of its sizes and of the device: printable before anything runs.
#pragma once

#include <cstdint>
#include <string>

#include "backends/gpu/weight_layout.h"
#include "ops/op.h"
#include "tensor/weight.h"

namespace dsv4::gpu {

struct ProductShape {
  int64_t rows = 0;  // M: rows of activations
  int64_t n = 0;
  int64_t k = 0;
  WeightFormat format = WeightFormat::kF32;
  ActivationRounding rounding = ActivationRounding::kNone;
};

enum class ProductKernel : uint8_t {
  kPortable,  // a lane group per output value, float32
  kRowStrip,  // M = 1: a block per strip, eight k groups side by side (sm90/row_product.cu)
  kTile,      // a pass of up to 64 rows: 128 rows of the weight per block, weights streamed once a pass (sm90/tile_product.cu)
  kFolded,    // FP8 or BF16 weights, M >= 512: scales folded into BF16 operands (sm90/folded_product.cu)
};

// How activations enter the tensor cores; every term is one column of the operand.
enum class Operand : uint8_t {
  kE4M3,    // rounded activations: one exact float16 term, a power-of-two scale per 128
  kBf16,    // activations rounded to BF16, FP8 or MXFP4 weight: one float16 term, a power-of-two scale per 128; exact down to 2^-31 of the block's largest
  kF16x2,   // unrounded, FP8 or MXFP4 weight: two float16 terms under a power-of-two scale per 128: 22 bits
  kBf16x3,  // unrounded, BF16 weight: three bfloat16 terms: 24 bits
};
DSV4_HOST_DEVICE constexpr int operand_terms(Operand o) { return o == Operand::kF16x2 ? 2 : o == Operand::kBf16x3 ? 3 : 1; }
Operand operand_of(WeightFormat format, ActivationRounding rounding);

// K is cut into this many groups of whole chunks; a group is summed alone and groups are added in order. It is part of the result's definition on
// this backend: every kernel for strips keeps it, so that results do not depend on M; but for those that only take 256 rows and more.
inline constexpr int kKGroups = 8;
// First chunk of group g when there are `chunks` chunks of 128 columns.
DSV4_HOST_DEVICE constexpr int64_t group_begin(int g, int64_t chunks) { return g * chunks / kKGroups; }

inline constexpr int64_t kMaxK = 32 * kKGroups * 128;  // a k group's chunks: one per lane

// Rows of a pass of the folded kernel.
DSV4_HOST_DEVICE constexpr int folded_pass_rows(int terms) { return terms == 1 ? 128 : 40; }

struct ProductPlan {
  ProductKernel kernel = ProductKernel::kPortable;
  Operand operand = Operand::kE4M3;
  int64_t rows_per_pass = 0;  // kTile, kFolded
  int k_split = 1;            // kTile: blocks of a cluster that share the k groups, 1, 4 or 8
  int64_t blocks = 0;
};

// Blocks of the tile kernel that share a multiprocessor: registers bound them.
DSV4_HOST_DEVICE constexpr int tile_blocks_per_multiprocessor(int column_tiles) { return column_tiles <= 2 ? 3 : column_tiles <= 6 ? 2 : 1; }

// `strips`: the device has the sm90 kernels and places weights in strips.
ProductPlan plan_product(const ProductShape& shape, bool strips, int multiprocessors);

// "linear M=1 N=32768 K=1024 fp8_block e4m3: row_strip, 264 blocks".
std::string describe_plan(const ProductShape& shape, bool strips, int multiprocessors);

// The same for routed experts, whose weights are [n, k] each: "M=1 N=2048 K=4096 mxfp4 e4m3: experts_row, 1 term".
std::string describe_experts(const ProductShape& shape, bool strips);

}  // namespace dsv4::gpu
