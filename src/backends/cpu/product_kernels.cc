// The product y[r][n] = sum over k of w[n][k] x[r][k] of packed weights and packed activations: the one kernel behind linear,
// grouped_linear, moe_experts and the mixes of the hyper-connection.
//
// Order of sums, the same in every path below: eight partial sums per (row, output), each an fma chain over the vectors of K in
// ascending order (packed order, decode-inl.h), then the lane tree. Which rows and outputs are computed together only changes which
// chains run side by side.
//
// Three paths, chosen by the number of rows:
//   one row: weights go from packed bytes to registers, four outputs side by side over all of K; nothing is stored. Bound by reading the
//     packed bytes.
//   few rows (2 to kDirectRows): weights go to registers and meet all rows there, block of K by block of K, so that x comes from L1 (all of
//     it would not fit: eight rows at K = 4096 are 128 KiB). Bound by reading up to about 4 rows, then by the fma units.
//   tile: 72 outputs x 256 values are decoded into L2 (72 KiB) and meet a panel of 64 rows; of these, 18 outputs (18 KiB) stay in L1 while
//     the rows pass, four at a time, 4 rows x 3 outputs in registers (12 sums of the 16 registers of AVX2). Sums live in L2 between blocks
//     of K. Bound by the fma units.
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

#ifndef DSV4_PF
#define DSV4_PF 2
#endif
inline constexpr int kPrefetchLocality = DSV4_PF;

template <WeightFormat F>
HWY_INLINE const uint8_t* scale_row(const WeightView& w, int64_t n) {
  if constexpr (F == WeightFormat::kFp8Block) return w.scale + n / kFp8WeightBlock * ((w.k + kFp8WeightBlock - 1) / kFp8WeightBlock);
  if constexpr (F == WeightFormat::kMxfp4) return w.scale + n * (w.k / kMxfp4Group);
  return nullptr;
}

// Packed bytes of one group of 32.
template <WeightFormat F>
constexpr int64_t group_bytes() {
  return F == WeightFormat::kF32 ? 128 : F == WeightFormat::kBF16 ? 64 : F == WeightFormat::kFp8Block ? 32 : 16;
}

HWY_INLINE void prefetch_line(const void* p) { __builtin_prefetch(p, 0, kPrefetchLocality); }

// One row of x: asks for the part of the next O outputs' bytes that corresponds to group g of these. Rows of one or two KiB are too short
// for the hardware's streams to get going, and O of them run side by side. Addresses past the end are only asked for, never read.
template <WeightFormat F, int O>
HWY_INLINE void prefetch_next(const uint8_t* bytes, const uint8_t* scales, int64_t g) {
  constexpr int64_t kBytes = O * group_bytes<F>();
  if constexpr (kBytes >= 64) {
    for (int64_t i = 0; i < kBytes; i += 64) prefetch_line(bytes + g * kBytes + i);
  } else {
    if (g % (64 / kBytes) == 0) prefetch_line(bytes + g * kBytes);
  }
  if constexpr (F == WeightFormat::kMxfp4) {
    if (g % (64 / O) == 0) prefetch_line(scales + g * O);
  }
}

// The weights' side of R rows x O outputs from n on.
template <WeightFormat F, int O>
struct WeightRows {
  const uint8_t* bytes[O];
  const uint8_t* scales[O];

  HWY_INLINE WeightRows(const Product& p, int64_t n) {
    for (int o = 0; o < O; ++o) {
      bytes[o] = p.weight.data + (n + o) * p.weight_row_bytes;
      scales[o] = scale_row<F>(p.weight, n + o);
    }
  }
};

// sum[r][o] += group g of the O outputs times the group's values x[r]. kPlain: decode by plain arithmetic.
template <WeightFormat F, int R, int O, bool kPlain>
HWY_INLINE void add_group(const WeightRows<F, O>& weights, int64_t g, int64_t count, const float* const (&x)[R], int64_t at, F8 (&sum)[R][O],
                          Fp8Watch& watch) {
  for (int o = 0; o < O; ++o) {
    F8 w[4];
    if constexpr (kPlain) {
      float values[32];
      decode_group_plain<F>(weights.bytes[o], weights.scales[o], g, count, values);
      load_group(values, w);
    } else {
      decode_group<F>(weights.bytes[o], weights.scales[o], g, w, watch);
    }
    for (int j = 0; j < 4; ++j) {
      for (int r = 0; r < R; ++r) sum[r][o] = fma(w[j], load8(x[r] + at + 8 * j), sum[r][o]);
    }
  }
}

inline constexpr int64_t kBlockGroups = kBlockK / 32;

// One row x O outputs over all of K, sums in registers. False: an FP8 code needs kPlain.
template <WeightFormat F, int O, bool kPlain>
HWY_INLINE bool single_row(const Product& p, int64_t n) {
  const WeightRows<F, O> weights(p, n);
  const uint8_t* next = weights.bytes[0] + O * p.weight_row_bytes;
  const uint8_t* next_scales = scale_row<F>(p.weight, n + O);
  const int64_t full = p.weight.k / 32;
  Fp8Watch watch;
  F8 sum[1][O];
  for (int o = 0; o < O; ++o) sum[0][o] = zero8();
  for (int64_t b = 0; b * kBlockGroups < full; ++b) {
    const float* x[1] = {p.x.block(p.row(0), b)};
    const int64_t end = std::min(full - b * kBlockGroups, kBlockGroups);
    for (int64_t g = 0; g < end; ++g) {
      prefetch_next<F, O>(next, next_scales, b * kBlockGroups + g);
      add_group<F, 1, O, kPlain>(weights, b * kBlockGroups + g, 32, x, 32 * g, sum, watch);
    }
  }
  if (const int64_t rest = p.weight.k - 32 * full; rest != 0) {
    const float* x[1] = {p.x.group(p.row(0), full)};
    add_group<F, 1, O, true>(weights, full, rest, x, 0, sum, watch);
  }
  if constexpr (F == WeightFormat::kFp8Block && !kPlain) {
    if (HWY_UNLIKELY(watch.seen())) return false;
  }
  for (int o = 0; o < O; ++o) p.y[n + o - p.y_first] = reduce_add8(sum[0][o]);
  return true;
}

template <WeightFormat F>
void single_row_range(const Product& p, int64_t begin, int64_t end) {
  int64_t n = begin;
  for (; n + 4 <= end; n += 4) {
    if (single_row<F, 4, false>(p, n)) continue;
    for (int o = 0; o < 4; ++o) single_row<F, 1, true>(p, n + o);
  }
  for (; n < end; ++n) {
    if (!single_row<F, 1, false>(p, n)) single_row<F, 1, true>(p, n);
  }
}

// R rows x O outputs over block b of K; sums (R x O vectors, by output) are carried in memory. False: nothing was stored, kPlain is needed.
template <WeightFormat F, int R, int O, bool kPlain>
HWY_INLINE bool few_rows(const Product& p, int64_t n, int64_t b, float* sums) {
  const WeightRows<F, O> weights(p, n);
  const int64_t full = p.weight.k / 32, first = b * kBlockGroups, end = std::min(full - first, kBlockGroups);
  const float* x[R];
  F8 sum[R][O];
  for (int r = 0; r < R; ++r) {
    x[r] = p.x.block(p.row(r), b);
    for (int o = 0; o < O; ++o) sum[r][o] = load8(sums + 8 * (o * R + r));
  }
  Fp8Watch watch;
  for (int64_t g = 0; g < end; ++g) {
    // The same outputs' next block; the hardware does not see a stream in pieces of 128 or 256 bytes a row apart.
    if (group_bytes<F>() >= 64 || g % (64 / group_bytes<F>()) == 0) {
      for (int o = 0; o < O; ++o) {
        for (int64_t i = 0; i < group_bytes<F>(); i += 64) prefetch_line(weights.bytes[o] + (first + kBlockGroups + g) * group_bytes<F>() + i);
      }
    }
    add_group<F, R, O, kPlain>(weights, first + g, 32, x, 32 * g, sum, watch);
  }
  if (const int64_t rest = p.weight.k - 32 * full; rest != 0 && full - first < kBlockGroups) {
    add_group<F, R, O, true>(weights, full, rest, x, 32 * end, sum, watch);
  }
  if constexpr (F == WeightFormat::kFp8Block && !kPlain) {
    if (HWY_UNLIKELY(watch.seen())) return false;
  }
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) store8(sum[r][o], sums + 8 * (o * R + r));
  }
  return true;
}

// Outputs of one pass over K: the block of x stays in L1 (8 rows: 8 KiB) while these take their turn, and so do their sums (8 KiB).
inline constexpr int64_t kPassOutputs = 32;

template <WeightFormat F, int R, int O>
void few_rows_range(const Product& p, int64_t begin, int64_t end) {
  alignas(64) float sums[kPassOutputs * R * 8];
  for (; begin < end; begin += kPassOutputs) {
    const int64_t stop = std::min(begin + kPassOutputs, end);
    std::memset(sums, 0, sizeof(sums));
    for (int64_t b = 0; b * kBlockK < p.weight.k; ++b) {
      int64_t n = begin;
      for (; n + O <= stop; n += O) {
        float* s = sums + (n - begin) * R * 8;
        if (few_rows<F, R, O, false>(p, n, b, s)) continue;
        for (int o = 0; o < O; ++o) few_rows<F, R, 1, true>(p, n + o, b, s + o * R * 8);
      }
      for (; n < stop; ++n) {
        float* s = sums + (n - begin) * R * 8;
        if (!few_rows<F, R, 1, false>(p, n, b, s)) few_rows<F, R, 1, true>(p, n, b, s);
      }
    }
    for (int64_t n = begin; n < stop; ++n) {
      for (int r = 0; r < R; ++r) p.y[r * p.y_stride + n - p.y_first] = reduce_add8(load8(sums + ((n - begin) * R + r) * 8));
    }
  }
}

// ---- tile path

struct TileScratch {
  alignas(64) float weights[kTileOutputs * kBlockK];      // [output][value of K]
  alignas(64) float sums[kPanelRows * kTileOutputs * 8];  // [row][output][lane]
};

template <WeightFormat F>
HWY_INLINE void decode_tile(const WeightView& w, int64_t row_bytes, int64_t n, int64_t outputs, int64_t block, float* tile) {
  const int64_t first = block * kBlockGroups, full = std::min(w.k / 32 - first, kBlockGroups), rest = w.k - 32 * (first + full);
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
    for (int64_t i = 0; i < kBlockGroups * group_bytes<F>(); i += 64) prefetch_line(bytes + (first + kBlockGroups) * group_bytes<F>() + i);
    if constexpr (F == WeightFormat::kFp8Block) {
      if (HWY_UNLIKELY(watch.seen())) {
        for (int64_t g = 0; g < full; ++g) decode_group_plain<F>(bytes, scales, first + g, 32, out + 32 * g);
      }
    }
    if (full < kBlockGroups && rest > 0) decode_group_plain<F>(bytes, scales, first + full, rest, out + 32 * full);
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
HWY_INLINE void tile_rows(const float* tile, int64_t outputs, const float* const* x, int64_t values, float* const* row_sums) {
  int64_t o = 0;
  float* sums[R];
  for (; o + 3 <= outputs; o += 3) {
    for (int r = 0; r < R; ++r) sums[r] = row_sums[r] + 8 * o;
    tile_block<R, 3>(tile + o * kBlockK, x, values, sums);
  }
  for (; o < outputs; ++o) {
    for (int r = 0; r < R; ++r) sums[r] = row_sums[r] + 8 * o;
    tile_block<R, 1>(tile + o * kBlockK, x, values, sums);
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
    for (int64_t part = 0; part < outputs; part += kPartOutputs) {
      const float* tile = s.weights + part * kBlockK;
      const int64_t count = std::min(kPartOutputs, outputs - part);
      for (int64_t r = 0; r < rows; r += 4) {
        const float* x[4];
        float* sums[4];
        const int64_t height = std::min<int64_t>(rows - r, 4);
        for (int64_t i = 0; i < height; ++i) {
          x[i] = p.x.block(p.row(row_begin + r + i), b);
          sums[i] = s.sums + ((r + i) * kTileOutputs + part) * 8;
          // The row's next block comes from L3 or beyond, in pieces of 1 KiB: asked for one block ahead.
          if (part == 0 && (b + 1) * kBlockK < p.weight.k) {
            const float* ahead = p.x.block(p.row(row_begin + r + i), b + 1);
            for (int64_t k = 0; k < kBlockK; k += 16) prefetch_line(ahead + k);
          }
        }
        switch (height) {
          case 4: tile_rows<4>(tile, count, x, values, sums); break;
          case 3: tile_rows<3>(tile, count, x, values, sums); break;
          case 2: tile_rows<2>(tile, count, x, values, sums); break;
          default: tile_rows<1>(tile, count, x, values, sums); break;
        }
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* y = p.y + (row_begin + r) * p.y_stride + begin - p.y_first;
    for (int64_t o = 0; o < outputs; ++o) y[o] = reduce_add8(load8(s.sums + (r * kTileOutputs + o) * 8));
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
    case 1: single_row_range<F>(p, begin, end); break;
    case 2: few_rows_range<F, 2, 4>(p, begin, end); break;
    case 3: few_rows_range<F, 3, 2>(p, begin, end); break;
    case 4: few_rows_range<F, 4, 2>(p, begin, end); break;
    case 5: few_rows_range<F, 5, 1>(p, begin, end); break;
    case 6: few_rows_range<F, 6, 1>(p, begin, end); break;
    case 7: few_rows_range<F, 7, 1>(p, begin, end); break;
    case 8: few_rows_range<F, 8, 1>(p, begin, end); break;
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
