// The product y[r][n] = sum over k of w[n][k] x[r][k] of packed weights and packed activations: the one kernel behind linear,
// grouped_linear, moe_experts and the mixes of the hyper-connection.
//
// Order of sums, the same in every path below: eight partial sums per (row, output), each an fma chain over the vectors of K in
// ascending order (packed order, decode-inl.h), then the lane tree. Which rows and outputs are computed together only changes which
// chains run side by side.
//
// Two paths, chosen by the number of rows:
//   direct (up to kDirectRows): weights go from packed bytes to registers and meet all rows there; nothing else is stored. One row is
//     bound by reading the packed bytes, eight rows by the fma units.
//   tile: 24 outputs x 256 values are decoded into L1 (24 KiB) and meet a panel of rows, 4 rows x 3 outputs in registers (12 sums of
//     the 16 registers of AVX2); sums live in L2 between blocks of K. Bound by the fma units.
// Shares reached are in docs/experiments/cpu.md.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/product_kernels.cc"
#include "hwy/foreach_target.h"

#include <algorithm>

#include "backends/cpu/decode-inl.h"
#include "backends/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

// ---- direct path

template <WeightFormat F>
HWY_INLINE const uint8_t* scale_row(const WeightView& w, int64_t n) {
  if constexpr (F == WeightFormat::kFp8Block) return w.scale + n / kFp8WeightBlock * ((w.k + kFp8WeightBlock - 1) / kFp8WeightBlock);
  if constexpr (F == WeightFormat::kMxfp4) return w.scale + n * (w.k / kMxfp4Group);
  return nullptr;
}

// R rows x O outputs from n on. kPlain: decode by plain arithmetic throughout. False (and nothing written): an FP8 code needs kPlain.
template <WeightFormat F, int R, int O, bool kPlain>
HWY_INLINE bool direct_block(const Product& p, int64_t n) {
  const uint8_t* bytes[O];
  const uint8_t* scales[O];
  for (int o = 0; o < O; ++o) {
    bytes[o] = p.weight.data + (n + o) * p.weight_row_bytes;
    scales[o] = scale_row<F>(p.weight, n + o);
  }
  F8 sum[R][O];
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) sum[r][o] = zero8();
  }
  Fp8Watch watch;
  constexpr int64_t kGroups = kBlockK / 32;
  const int64_t full = p.weight.k / 32;
  for (int64_t b = 0; b * kGroups < full; ++b) {
    const float* x[R];
    for (int r = 0; r < R; ++r) x[r] = p.x.block(p.row(r), b);
    const int64_t end = std::min(full - b * kGroups, kGroups);
    for (int64_t g = 0; g < end; ++g) {
      for (int o = 0; o < O; ++o) {
        F8 w[4];
        if constexpr (kPlain) {
          float values[32];
          decode_group_plain<F>(bytes[o], scales[o], b * kGroups + g, 32, values);
          load_group(values, w);
        } else {
          decode_group<F>(bytes[o], scales[o], b * kGroups + g, w, watch);
        }
        for (int j = 0; j < 4; ++j) {
          for (int r = 0; r < R; ++r) sum[r][o] = fma(w[j], load8(x[r] + 32 * g + 8 * j), sum[r][o]);
        }
      }
    }
  }
  if constexpr (F == WeightFormat::kFp8Block && !kPlain) {
    if (HWY_UNLIKELY(watch.seen())) return false;
  }
  if (const int64_t rest = p.weight.k - 32 * full; rest != 0) {
    for (int o = 0; o < O; ++o) {
      float values[32];
      decode_group_plain<F>(bytes[o], scales[o], full, rest, values);
      for (int j = 0; j < 4; ++j) {
        for (int r = 0; r < R; ++r) sum[r][o] = fma(load8(values + 8 * j), load8(p.x.group(p.row(r), full) + 8 * j), sum[r][o]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) p.y[r * p.y_stride + n + o - p.y_first] = reduce_add8(sum[r][o]);
  }
  return true;
}

template <WeightFormat F, int R, int O>
void direct_range(const Product& p, int64_t begin, int64_t end) {
  int64_t n = begin;
  for (; n + O <= end; n += O) {
    if (!direct_block<F, R, O, false>(p, n)) {
      for (int o = 0; o < O; ++o) direct_block<F, R, 1, true>(p, n + o);
    }
  }
  for (; n < end; ++n) {
    if (!direct_block<F, R, 1, false>(p, n)) direct_block<F, R, 1, true>(p, n);
  }
}

// ---- tile path

struct TileScratch {
  alignas(64) float weights[kTileOutputs * kBlockK];          // [output][value of K]
  alignas(64) float sums[kPanelRows * kTileOutputs * 8];      // [row][output][lane]
};

template <WeightFormat F>
HWY_INLINE void decode_tile(const WeightView& w, int64_t row_bytes, int64_t n, int64_t outputs, int64_t block, float* tile) {
  constexpr int64_t kGroups = kBlockK / 32;
  const int64_t first = block * kGroups, full = std::min(w.k / 32 - first, kGroups), rest = w.k - 32 * (first + full);
  for (int64_t o = 0; o < outputs; ++o) {
    const uint8_t* bytes = w.data + (n + o) * row_bytes;
    const uint8_t* scales = scale_row<F>(w, n + o);
    float* out = tile + o * kBlockK;
    Fp8Watch watch;
    for (int64_t g = 0; g < full; ++g) {
      F8 v[4];
      decode_group<F>(bytes, scales, first + g, v, watch);
      for (int j = 0; j < 4; ++j) store8(v[j], out + 32 * g + 8 * j);
    }
    if constexpr (F == WeightFormat::kFp8Block) {
      if (HWY_UNLIKELY(watch.seen())) {
        for (int64_t g = 0; g < full; ++g) decode_group_plain<F>(bytes, scales, first + g, 32, out + 32 * g);
      }
    }
    if (full < kGroups && rest > 0) decode_group_plain<F>(bytes, scales, first + full, rest, out + 32 * full);
  }
}

// R rows x O outputs over `values` values of one block: sums += tile . x.
template <int R, int O>
HWY_INLINE void tile_block(const float* tile, const float* const* x, int64_t values, float* const* sums) {
  F8 sum[R][O];
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) sum[r][o] = load8(sums[r] + 8 * o);
  }
  for (int64_t k = 0; k < values; k += 8) {
    F8 w[O];
    for (int o = 0; o < O; ++o) w[o] = load8(tile + o * kBlockK + k);
    for (int r = 0; r < R; ++r) {
      const F8 v = load8(x[r] + k);
      for (int o = 0; o < O; ++o) sum[r][o] = fma(w[o], v, sum[r][o]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) store8(sum[r][o], sums[r] + 8 * o);
  }
}

template <int R>
HWY_INLINE void tile_rows(const TileScratch& s, int64_t outputs, const float* const* x, int64_t values, float* const* row_sums) {
  int64_t o = 0;
  for (; o + 3 <= outputs; o += 3) {
    float* sums[R];
    for (int r = 0; r < R; ++r) sums[r] = row_sums[r] + 8 * o;
    tile_block<R, 3>(s.weights + o * kBlockK, x, values, sums);
  }
  for (; o < outputs; ++o) {
    float* sums[R];
    for (int r = 0; r < R; ++r) sums[r] = row_sums[r] + 8 * o;
    tile_block<R, 1>(s.weights + o * kBlockK, x, values, sums);
  }
}

// Outputs [begin, end), at most kTileOutputs, of rows [row_begin, row_end), at most kPanelRows.
template <WeightFormat F>
void tile_panel(const Product& p, int64_t begin, int64_t end, int64_t row_begin, int64_t row_end, TileScratch& s) {
  const int64_t outputs = end - begin, rows = row_end - row_begin;
  std::memset(s.sums, 0, static_cast<size_t>(rows * kTileOutputs * 8) * sizeof(float));
  for (int64_t b = 0; b * kBlockK < p.weight.k; ++b) {
    decode_tile<F>(p.weight, p.weight_row_bytes, begin, outputs, b, s.weights);
    const int64_t values = (std::min(p.weight.k - b * kBlockK, kBlockK) + 31) / 32 * 32;
    for (int64_t r = 0; r < rows; r += 4) {
      const float* x[4];
      float* sums[4];
      const int64_t count = std::min<int64_t>(rows - r, 4);
      for (int64_t i = 0; i < count; ++i) {
        x[i] = p.x.block(p.row(row_begin + r + i), b);
        sums[i] = s.sums + (r + i) * kTileOutputs * 8;
      }
      switch (count) {
        case 4: tile_rows<4>(s, outputs, x, values, sums); break;
        case 3: tile_rows<3>(s, outputs, x, values, sums); break;
        case 2: tile_rows<2>(s, outputs, x, values, sums); break;
        default: tile_rows<1>(s, outputs, x, values, sums); break;
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) p.y[(row_begin + r) * p.y_stride + begin + o - p.y_first] = reduce_add8(load8(s.sums + (r * kTileOutputs + o) * 8));
  }
}

// ---- choice of path

template <WeightFormat F>
void product_in_format(const Product& p, int64_t begin, int64_t end, int64_t row_begin, int64_t row_end) {
  if (p.rows > kDirectRows) {
    TileScratch s;
    for (int64_t n = begin; n < end; n += kTileOutputs) {
      for (int64_t r = row_begin; r < row_end; r += kPanelRows) {
        tile_panel<F>(p, n, std::min(n + kTileOutputs, end), r, std::min(r + kPanelRows, row_end), s);
      }
    }
    return;
  }
  switch (p.rows) {
    case 1: direct_range<F, 1, 4>(p, begin, end); break;
    case 2: direct_range<F, 2, 4>(p, begin, end); break;
    case 3: direct_range<F, 3, 2>(p, begin, end); break;
    case 4: direct_range<F, 4, 2>(p, begin, end); break;
    case 5: direct_range<F, 5, 1>(p, begin, end); break;
    case 6: direct_range<F, 6, 1>(p, begin, end); break;
    case 7: direct_range<F, 7, 1>(p, begin, end); break;
    case 8: direct_range<F, 8, 1>(p, begin, end); break;
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

void add_product_kernels(CpuIsa isa, CpuKernels& kernels) { kernels.product = DSV4_CPU_KERNEL(product, isa); }

}  // namespace dsv4
#endif
