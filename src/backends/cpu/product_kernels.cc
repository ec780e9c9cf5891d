// The product y[r][n] = sum over k of w[n][k] x[r][k] of packed weights and packed activations: the one kernel behind linear,
// grouped_linear, moe_experts and the mixes of the hyper-connection.
//
// Order of sums, the same in every path below: eight partial sums per (row, output), each an fma chain over the vectors of K in
// ascending order (packed order, decode-inl.h), then the lane tree. Which rows and outputs are computed together only changes which
// chains run side by side.
//
// Paths, chosen by the number of rows and the cost of the decode (direct_rows); direct and natural are in product_rows-inl.h, tile in
// product_tile-inl.h:
//   direct: weights go from packed bytes to registers, two or four outputs side by side over all of K; nothing is stored. FP8 and MXFP4 up to
//     4 rows (AVX-512: 2 and 1), one row of any format. Long ranges are read as so many streams. Bound by reading the packed bytes, MXFP4 by
//     the decode (18 vector operations per 32 weights, of which Zen 3 does 3.3 a cycle).
//   natural: BF16 and F32 with 2 to 8 rows (AVX-512: 4). Blocks of 256 values, in which x stays in L1; a pass takes twelve outputs, each the
//     head of a stream, three at a time with up to four rows in registers, the other rows right after them on the same weights. Bound by
//     reading, from 8 rows on by the vector units.
//   tile: 72 outputs x 256 values are decoded into L2 (72 KiB) and meet a panel of 64 rows; of these, a part of 12 outputs (AVX-512: 24) stays in
//     L1 while the rows pass, four at a time, 4 rows x 3 vectors of outputs in registers (a vector is one output, AVX-512: two). Where the
//     panel's rows stay in L2 for all of K, a tile is one part. Between blocks of K sums live in L2; after the last block they go from the
//     registers to y. Bound by the fma units.
// Shares reached are in docs/experiments/cpu.md.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/product_kernels.cc"
#include "hwy/foreach_target.h"

#include <algorithm>

#include "backends/cpu/kernels.h"
#include "backends/cpu/product_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

// A costly decode soon wants to be done once. So does any where a tile's wide vectors take two outputs at a time and the few rows' registers one.
int64_t direct_rows(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16: return kWide > 1 ? 4 : 8;
    case WeightFormat::kFp8Block: return kWide > 1 ? 2 : 4;
    case WeightFormat::kMxfp4: return kWide > 1 ? 1 : 4;
  }
  return 0;
}

template <WeightFormat F>
void product_in_format(const Product& p, int64_t begin, int64_t end, int64_t row_begin, int64_t row_end) {
  if (p.rows > direct_rows(F)) {
    TileScratch s;
    const bool panel_stays = std::min(p.rows, kPanelRows) * p.weight.k <= kPanelValues;
    const int64_t step = p.rows <= kOnePartRows || panel_stays ? kPartOutputs : kTileOutputs;
    for (int64_t r = row_begin; r < row_end; r += kPanelRows) {
      for (int64_t n = begin; n < end; n += step) tile_panel<F>(p, n, std::min(n + step, end), r, std::min(r + kPanelRows, row_end), s);
    }
    return;
  }
  if (p.rows == 1) return direct_range<F, 1, 4>(p, begin, end);
  if constexpr (kCheapDecode<F>) {
    switch (p.rows) {
      case 2: return natural_range<F, 2, 0>(p, begin, end);
      case 3: return natural_range<F, 3, 0>(p, begin, end);
      case 4: return natural_range<F, 4, 0>(p, begin, end);
      case 5: return natural_range<F, 3, 2>(p, begin, end);
      case 6: return natural_range<F, 3, 3>(p, begin, end);
      case 7: return natural_range<F, 4, 3>(p, begin, end);
      case 8: return natural_range<F, 4, 4>(p, begin, end);
    }
  } else {
    switch (p.rows) {
      case 2: return direct_range<F, 2, 2>(p, begin, end);
      case 3: return direct_range<F, 3, 2>(p, begin, end);
      case 4: return direct_range<F, 4, 2>(p, begin, end);
    }
  }
}

// Outputs [begin, end) of rows [row_begin, row_end); all rows on the direct path.
void product(const Product& p, int64_t begin, int64_t end, int64_t row_begin, int64_t row_end) {
  switch (p.weight.format) {
    case WeightFormat::kF32: product_in_format<WeightFormat::kF32>(p, begin, end, row_begin, row_end); break;
    case WeightFormat::kBF16: product_in_format<WeightFormat::kBF16>(p, begin, end, row_begin, row_end); break;
    case WeightFormat::kFp8Block: product_in_format<WeightFormat::kFp8Block>(p, begin, end, row_begin, row_end); break;
    case WeightFormat::kMxfp4: product_in_format<WeightFormat::kMxfp4>(p, begin, end, row_begin, row_end); break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4 {

HWY_EXPORT(product);
HWY_EXPORT(direct_rows);

void add_product_kernels(CpuIsa isa, CpuKernels& kernels) {
  kernels.product = DSV4_CPU_KERNEL(product, isa);
  kernels.direct_rows = DSV4_CPU_KERNEL(direct_rows, isa);
}

}  // namespace dsv4
#endif
