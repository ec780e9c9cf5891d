// Products of many rows: the tile path of product_kernels.cc.
#if defined(DSV4_CPU_PRODUCT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_PRODUCT_TILE_INL_H_
#undef DSV4_CPU_PRODUCT_TILE_INL_H_
#else
#define DSV4_CPU_PRODUCT_TILE_INL_H_
#endif

#include <algorithm>

#include "backends/cpu/decode_wide-inl.h"
#include "backends/cpu/product_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

// The packed bytes that come after block b of output n: the output's next block, or after the last one the first block of the output
// that takes its place in the next pass over K. The hardware does not see a stream in pieces of 128 to 512 bytes a row apart.
template <WeightFormat F>
HWY_INLINE const uint8_t* bytes_ahead(const Product& p, int64_t n, int64_t b, int64_t pass) {
  const bool last = (b + 1) * kBlockK >= p.weight.k;
  return p.weight.data + (last ? n + pass : n) * p.weight_row_bytes + (last ? 0 : (b + 1) * kBlockGroups * group_bytes<F>());
}

// Outputs share wide vectors: values 8 i .. 8 i + 7 of output o lie in part o % kWide of vector i of row o / kWide of the tile.
inline constexpr int64_t kTileVector = 8 * kWide;
inline constexpr int64_t kBlockOutputs = 3 * kWide;  // of a block of sums: three vectors
HWY_INLINE float* tile_output(float* tile, int64_t o) { return tile + o / kWide * kWide * kBlockK + o % kWide * 8; }

// Sums of a block of up to four rows x three vectors of outputs: twelve vectors side by side, so that a block is whole cache lines and blocks
// follow each other in the order of their use.
inline constexpr int64_t kBlockSums = 12 * kTileVector;

// Outputs of a tile that stay in L1 while the rows pass: 12 KiB for AVX2 (L1 of 32 KiB), 24 KiB for AVX-512 (48 KiB), whose registers would
// otherwise go through the rows faster than L2 brings them.
inline constexpr int64_t kPartOutputs = kOutputStep * kWide;
static_assert(kTileOutputs % kPartOutputs == 0 && kPartOutputs % kBlockOutputs == 0);

// Up to here a tile is one part: it, the rows and the sums all stay in L1, or all of a panel's rows stay in half of L2 while parts pass (256 KiB
// with AVX2, 1 MiB with AVX-512).
inline constexpr int64_t kOnePartRows = 16;
inline constexpr int64_t kPanelValues = kWide > 1 ? 262144 : 65536;

struct TileScratch {
  alignas(64) float weights[kTileOutputs * kBlockK];                                     // tile_output
  alignas(64) float sums[kPanelRows / 4 * (kTileOutputs / kBlockOutputs) * kBlockSums];  // [4 rows][3 vectors of outputs][row, vector][lane]
};

// Where a wide vector has more parts than outputs are left, the last output stands in for the missing ones; their sums go nowhere.
template <WeightFormat F>
HWY_INLINE void decode_tile_plain(const Product& p, int64_t n, int64_t outputs, int64_t b, float* tile) {
  const int64_t values = std::min(p.weight.k - b * kBlockK, kBlockK);
  for (int64_t o = 0; o < outputs || o % kWide != 0; ++o) {
    const WeightRows<F, 1> weights(p, n + std::min(o, outputs - 1), 1);
    for (int64_t i = 0; i < values; i += 32) {
      float group[32];
      decode_group_plain<F>(weights.bytes[0], weights.scales[0], b * kBlockGroups + i / 32, std::min<int64_t>(32, values - i), group);
      for (int j = 0; j < 4; ++j) store8(load8(group + 8 * j), tile_output(tile, o) + (i / 8 + j) * kTileVector);
    }
  }
}

template <WeightFormat F>
HWY_INLINE void decode_tile(const Product& p, int64_t n, int64_t outputs, int64_t b, float* tile) {
  const int64_t first = b * kBlockGroups, groups = std::min(p.weight.k - b * kBlockK, kBlockK) / 32;
  if (HWY_UNLIKELY((p.weight.k - b * kBlockK) % 32 != 0 && groups < kBlockGroups)) {  // a last block that ends within a group
    decode_tile_plain<F>(p, n, outputs, b, tile);
    return;
  }
  Fp8Watch watch;
  for (int64_t o = 0; o < outputs; o += kWide) {
    const WeightRows<F, kWide> weights(p, n + o, outputs - o < kWide ? 0 : 1);
    const uint8_t* ahead[kWide];
    for (int i = 0; i < kWide; ++i) ahead[i] = bytes_ahead<F>(p, n + o + i, b, outputs);
    float* out = tile_output(tile, o);
    for (int64_t run = 0; run * kRunGroups < groups; ++run) {
      constexpr int64_t kRunBytes = kRunGroups * group_bytes<F>();
      for (const uint8_t* from : ahead) {
        for (int64_t i = 0; i < kRunBytes; i += 64) prefetch_line(from + run * kRunBytes + i);
      }
      const WideScale<F> scale(weights.scales, first / kRunGroups + run, watch);
      for (int64_t g = run * kRunGroups; g < std::min((run + 1) * kRunGroups, groups); ++g) {
        FWide w[4];
        decode_wide<F>(weights.bytes, scale, first + g, w, watch);
        for (int j = 0; j < 4; ++j) store_wide(w[j], out + (4 * g + j) * kTileVector);
      }
    }
  }
  if constexpr (F == WeightFormat::kFp8Block) {
    if (HWY_UNLIKELY(watch.seen())) decode_tile_plain<F>(p, n, outputs, b, tile);
  }
}

// Where a block's sums come from and go to: they start at zero in the first block of K, and leave the registers for y after the last.
struct TileStep {
  int64_t values = 0;  // of this block, a multiple of 32
  bool first = false;
  bool last = false;
  int64_t y_stride = 0;
};

// R rows x O vectors of outputs over one block: sums += tile . x. The last of the outputs may be missing.
template <int R, int O>
HWY_INLINE void tile_block(const float* tile, int64_t outputs, const float* const* x, const TileStep& step, float* sums, float* y) {
  FWide sum[R][O];
  if (step.first) {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < O; ++o) sum[r][o] = zero_wide();
    }
  } else {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < O; ++o) sum[r][o] = load_wide(sums + (r * O + o) * kTileVector);
    }
  }
  for (int64_t k = 0; k < step.values; k += 8) {
    FWide w[O];
    for (int o = 0; o < O; ++o) w[o] = load_wide_once(tile + (o * kBlockK + k) * kWide);
    for (int r = 0; r < R; ++r) {
      const FWide v = load_same(x[r] + k);
      for (int o = 0; o < O; ++o) sum[r][o] = fma(w[o], v, sum[r][o]);
    }
  }
  if (!step.last) {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < O; ++o) store_wide(sum[r][o], sums + (r * O + o) * kTileVector);
    }
    return;
  }
  if constexpr (kWide == 1) {
    for (int r = 0; r < R; ++r) reduce_to<O>(sum[r], y + r * step.y_stride, 1);
  } else {
    float of[O][4 * kWide];  // [vector of outputs][row][output of the vector]
    for (int o = 0; o < O; ++o) reduce_wide_x4(sum[0][o], sum[std::min(1, R - 1)][o], sum[std::min(2, R - 1)][o], sum[R - 1][o], of[o]);
    for (int r = 0; r < R; ++r) {
      for (int64_t n = 0; n < std::min<int64_t>(O * kWide, outputs); ++n) y[r * step.y_stride + n] = of[n / kWide][r * kWide + n % kWide];
    }
  }
}

template <int R>
void tile_rows(const float* tile, int64_t outputs, const float* const* x, const TileStep& step, float* sums, float* y) {
  for (int64_t o = 0; o < outputs; o += kBlockOutputs, sums += kBlockSums) {
    const int64_t left = outputs - o;
    const float* w = tile + o * kBlockK;
    if (HWY_LIKELY(left > 2 * kWide)) {
      tile_block<R, 3>(w, left, x, step, sums, y + o);
    } else if (left > kWide) {
      tile_block<R, 2>(w, left, x, step, sums, y + o);
    } else {
      tile_block<R, 1>(w, left, x, step, sums, y + o);
    }
  }
}

// Rows of the next block when `left` remain: as many threes as it takes for the rest to be fours (5 is 3 and 2). Two rows or one keep too few
// sums in flight.
HWY_INLINE int64_t block_height(int64_t left) { return left <= 3 ? left : left % 4 == 0 || left % 4 == 3 ? 4 : 3; }

// The decoded block b of outputs [begin, begin + outputs) meets rows [row_begin, row_end).
inline void tile_pass(const Product& p, int64_t begin, int64_t outputs, int64_t b, int64_t row_begin, int64_t row_end, TileScratch& s) {
  const int64_t row_sums = (outputs + kBlockOutputs - 1) / kBlockOutputs * kBlockSums;  // of one block of rows
  const TileStep step{
      .values = (std::min(p.weight.k - b * kBlockK, kBlockK) + 31) / 32 * 32, .first = b == 0, .last = (b + 1) * kBlockK >= p.weight.k, .y_stride = p.y_stride};
  const bool ask_ahead = !step.last && p.rows > kOnePartRows;  // few rows are in L2 as a whole
  for (int64_t part = 0; part < outputs; part += kPartOutputs) {
    const float* tile = s.weights + part * kBlockK;
    const int64_t count = std::min(kPartOutputs, outputs - part);
    float* sums = s.sums + part / kBlockOutputs * kBlockSums;
    for (int64_t r = row_begin, height; r < row_end; r += height, sums += row_sums) {
      height = block_height(row_end - r);
      const float* x[4];
      for (int64_t i = 0; i < height; ++i) {
        x[i] = p.x.block(p.row(r + i), b);
        // The row's next block comes from L3 or beyond, in pieces of 1 KiB: asked for one block ahead.
        if (part == 0 && ask_ahead) {
          const float* ahead = p.x.block(p.row(r + i), b + 1);
          for (int64_t k = 0; k < kBlockK; k += 16) prefetch_line(ahead + k);
        }
      }
      float* y = p.y + r * p.y_stride + begin + part - p.y_first;
      switch (height) {
        case 4: tile_rows<4>(tile, count, x, step, sums, y); break;
        case 3: tile_rows<3>(tile, count, x, step, sums, y); break;
        case 2: tile_rows<2>(tile, count, x, step, sums, y); break;
        default: tile_rows<1>(tile, count, x, step, sums, y); break;
      }
    }
  }
}

// Outputs [begin, end), at most kTileOutputs, of rows [row_begin, row_end), at most kPanelRows.
template <WeightFormat F>
void tile_panel(const Product& p, int64_t begin, int64_t end, int64_t row_begin, int64_t row_end, TileScratch& s) {
  for (int64_t b = 0; b * kBlockK < p.weight.k; ++b) {
    decode_tile<F>(p, begin, end - begin, b, s.weights);
    tile_pass(p, begin, end - begin, b, row_begin, row_end, s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
