// The product y[r][n] = sum over k of w[n][k] x[r][k] of packed weights and packed activations: the one kernel behind linear,
// grouped_linear, moe_experts and the mixes of the hyper-connection.
//
// Order of sums, the same in every path below: eight partial sums per (row, output), each an fma chain over the vectors of K in
// ascending order (packed order, decode-inl.h), then the lane tree. Which rows and outputs are computed together only changes which
// chains run side by side.
//
// Paths, chosen by the number of rows and the cost of the decode (direct_rows):
//   direct: weights go from packed bytes to registers, two or four outputs side by side over all of K; nothing is stored. FP8 and MXFP4 up to
//     4 rows, one row of any format. Long ranges are read as so many streams. Bound by reading the packed bytes, MXFP4 by the decode (18
//     vector operations per 32 weights, of which Zen 3 does 3.3 a cycle).
//   natural: BF16 and F32 with 2 to 8 rows. Blocks of 256 values, in which x stays in L1; a pass takes twelve outputs, each the head of a
//     stream, three at a time with up to four rows in registers, the other rows right after them on the same weights. Bound by reading, from
//     8 rows on by the vector units.
//   tile: 72 outputs x 256 values are decoded into L2 (72 KiB) and meet a panel of 64 rows; of these, 12 outputs (12 KiB) stay in L1 while
//     the rows pass, four at a time, 4 rows x 3 outputs in registers (12 sums of the 16 registers of AVX2). Between blocks of K sums live in
//     L2; after the last block they go from the registers to y. Bound by the fma units.
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

// Into L2: a block ahead is more than what is left of L1.
inline constexpr int kPrefetchLocality = 2;

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

// Formats whose values become floats one vector at a time, in natural order.
template <WeightFormat F>
inline constexpr bool kCheapDecode = F == WeightFormat::kF32 || F == WeightFormat::kBF16;

// Rows of these formats from 8 KiB on are left to the hardware's streams, which then fetch faster than software asks.
template <WeightFormat F>
HWY_INLINE bool asks_ahead(const Product& p) {
  return !kCheapDecode<F> || p.weight_row_bytes < 8192;
}

inline constexpr int64_t kBlockGroups = kBlockK / 32;
inline constexpr int64_t kRunGroups = kFp8WeightBlock / 32;

// Asks for the block of groups from `first` on of packed row n, which is read later. Addresses past the end are only asked for, never read.
template <WeightFormat F>
HWY_INLINE void ask_for_block(const Product& p, int64_t n, int64_t first) {
  const int64_t begin = first * group_bytes<F>(), end = std::min(begin + kBlockGroups * group_bytes<F>(), p.weight_row_bytes);
  for (int64_t at = begin; at < end; at += 64) prefetch_line(p.weight.data + n * p.weight_row_bytes + at);
}

// The weights of O outputs n, n + step, ..
template <WeightFormat F, int O>
struct WeightRows {
  const uint8_t* bytes[O];
  const uint8_t* scales[O];

  HWY_INLINE WeightRows(const Product& p, int64_t n, int64_t step) {
    for (int o = 0; o < O; ++o) {
      bytes[o] = p.weight.data + (n + o * step) * p.weight_row_bytes;
      scales[o] = scale_row<F>(p.weight, n + o * step);
    }
  }
};

// sum[r] += w . x[r] for one group.
template <int R>
HWY_INLINE void add_products(const F8 (&w)[4], const float* const (&x)[R], int64_t at, F8 (&sum)[R]) {
  for (int j = 0; j < 4; ++j) {
    for (int r = 0; r < R; ++r) sum[r] = fma(w[j], load8(x[r] + at + 8 * j), sum[r]);
  }
}

// Groups that share what RunScale holds; formats without it take a whole block at a time.
template <WeightFormat F>
constexpr int64_t run_groups() {
  return F == WeightFormat::kFp8Block ? kRunGroups : kBlockGroups;
}

// sum[o][r] += groups [first, first + count) of the O outputs times the values x[r] from `at` on.
template <WeightFormat F, int R, int O>
HWY_INLINE void add_groups(const WeightRows<F, O>& weights, int64_t first, int64_t count, const float* const (&x)[R], F8 (&sum)[O][R], Fp8Watch& watch) {
  for (int64_t g = 0; g < count; g += run_groups<F>()) {
    const int64_t end = std::min(count, g + run_groups<F>());
    for (int64_t i = g; i < end; ++i) {
      for (int o = 0; o < O; ++o) {
        F8 w[4];
        decode_group(weights.bytes[o], RunScale<F>(weights.scales[o], (first + g) / kRunGroups, watch), first + i, w, watch);
        add_products<R>(w, x, 32 * i, sum[o]);
      }
    }
  }
}

// The same by plain arithmetic; `count` values.
template <WeightFormat F, int R, int O>
HWY_INLINE void add_values_plain(const WeightRows<F, O>& weights, int64_t first, int64_t count, const float* const (&x)[R], F8 (&sum)[O][R]) {
  for (int64_t i = 0; 32 * i < count; ++i) {
    for (int o = 0; o < O; ++o) {
      float values[32];
      F8 w[4];
      decode_group_plain<F>(weights.bytes[o], weights.scales[o], first + i, std::min<int64_t>(32, count - 32 * i), values);
      load_group(values, w);
      add_products<R>(w, x, 32 * i, sum[o]);
    }
  }
}

template <int R, int O>
HWY_INLINE void clear(F8 (&sum)[O][R]) {
  for (int o = 0; o < O; ++o) {
    for (int r = 0; r < R; ++r) sum[o][r] = zero8();
  }
}

template <int R>
HWY_INLINE void rows_at(const Product& p, int64_t group, const float* (&x)[R]) {
  for (int r = 0; r < R; ++r) x[r] = p.x.group(p.row(r), group);
}

// The lane trees of one row and O outputs, `step` apart, to y.
template <int O>
HWY_INLINE void reduce_to(const F8 (&sum)[O], float* y, int64_t step) {
  float out[O];
  if constexpr (O == 4) {
    reduce_add8x4(sum[0], sum[1], sum[2], sum[3], out);
  } else if constexpr (O == 3) {
    reduce_add8x3(sum[0], sum[1], sum[2], out);
  } else {
    for (int o = 0; o < O; ++o) out[o] = reduce_add8(sum[o]);
  }
  for (int o = 0; o < O; ++o) y[o * step] = out[o];
}

template <int R, int O>
HWY_INLINE void direct_to_y(const Product& p, int64_t n, int64_t step, const F8 (&sum)[O][R]) {
  for (int r = 0; r < R; ++r) {
    F8 row[O];
    for (int o = 0; o < O; ++o) row[o] = sum[o][r];
    reduce_to<O>(row, p.y + r * p.y_stride + n - p.y_first, step);
  }
}

// R rows x O outputs n, n + step, .. over all of K, sums in registers; asks for the rows `ahead` further on. False: an FP8 code needs
// direct_plain.
template <WeightFormat F, int R, int O>
HWY_INLINE bool direct_outputs(const Product& p, int64_t n, int64_t step, int64_t ahead) {
  const WeightRows<F, O> weights(p, n, step);
  F8 sum[O][R];
  const float* x[R];
  clear(sum);
  Fp8Watch watch;
  const int64_t whole = p.weight.k / 32;
  for (int64_t first = 0; first < whole; first += kBlockGroups) {
    if (asks_ahead<F>(p)) {
      for (int o = 0; o < O; ++o) ask_for_block<F>(p, n + o * step + ahead, first);
      if (F == WeightFormat::kMxfp4 && first % 64 == 0) {
        for (int o = 0; o < O; ++o) prefetch_line(weights.scales[o] + (ahead * (p.weight.k / kMxfp4Group) + first));
      }
    }
    rows_at<R>(p, first, x);
    add_groups<F>(weights, first, std::min(kBlockGroups, whole - first), x, sum, watch);
  }
  if (HWY_UNLIKELY(p.weight.k % 32 != 0)) {
    rows_at<R>(p, whole, x);
    add_values_plain<F>(weights, whole, p.weight.k % 32, x, sum);
  }
  if (F == WeightFormat::kFp8Block && watch.seen()) return false;
  direct_to_y(p, n, step, sum);
  return true;
}

template <WeightFormat F, int R>
void direct_plain(const Product& p, int64_t n) {
  const WeightRows<F, 1> weights(p, n, 1);
  F8 sum[1][R];
  const float* x[R];
  clear(sum);
  for (int64_t first = 0; 32 * first < p.weight.k; first += kBlockGroups) {
    rows_at<R>(p, first, x);
    add_values_plain<F>(weights, first, std::min(kBlockK, p.weight.k - 32 * first), x, sum);
  }
  direct_to_y(p, n, 1, sum);
}

// Parts of a range from here on are long enough to be streams of their own.
inline constexpr int64_t kStreamBytes = 8192;

// O outputs at a time: where the range is long, it is cut in O parts, each a stream; where it is short, they are neighbours.
template <WeightFormat F, int R, int O>
void direct_range(const Product& p, int64_t begin, int64_t end) {
  const int64_t passes = (end - begin) / O;
  const bool streams = passes * p.weight_row_bytes >= kStreamBytes;
  const int64_t step = streams ? passes : 1, stride = streams ? 1 : O;
  for (int64_t pass = 0, n = begin; pass < passes; ++pass, n += stride) {
    if (HWY_LIKELY((direct_outputs<F, R, O>(p, n, step, stride)))) continue;
    for (int o = 0; o < O; ++o) direct_plain<F, R>(p, n + o * step);
  }
  for (int64_t n = begin + O * passes; n < end; ++n) {
    if (!direct_outputs<F, R, 1>(p, n, 1, 1)) direct_plain<F, R>(p, n);
  }
}

// ---- few rows of a format with a cheap decode

// Outputs of a pass over K, three at a time, each the head of a stream: a range of outputs is cut in as many parts, so that a pass continues
// every stream where the last one left it.
inline constexpr int64_t kPassOutputs = 12;

template <WeightFormat F>
HWY_INLINE F8 natural_vector(const uint8_t* row, int64_t k) {
  if constexpr (F == WeightFormat::kBF16) return load8_bf16(reinterpret_cast<const uint16_t*>(row) + k);
  return load8(reinterpret_cast<const float*>(row) + k);
}

// R rows from `row` on x O outputs n, n + step, .. over block b of K; sums [row][output] come from memory and go back, or to y after the last
// block.
template <WeightFormat F, int R, int O>
HWY_INLINE void natural_block(const Product& p, int64_t n, int64_t step, int64_t row, int64_t b, float* sums) {
  const WeightRows<F, O> weights(p, n, step);
  F8 sum[R][O];
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) sum[r][o] = b == 0 ? zero8() : load8(sums + 8 * (r * O + o));
  }
  const int64_t values = std::min(p.weight.k - b * kBlockK, kBlockK), whole = values / 32 * 32;
  const float* x[R];
  for (int r = 0; r < R; ++r) x[r] = p.x.block(p.row(row + r), b);
  const auto add = [&](const auto& vector, int64_t first, int64_t last) HWY_ATTR {
    for (int64_t k = first; k < last; k += 8) {
      F8 w[O];
      for (int o = 0; o < O; ++o) w[o] = vector(o, k);
      for (int r = 0; r < R; ++r) {
        const F8 v = load8_once(x[r] + k);
        for (int o = 0; o < O; ++o) sum[r][o] = fma(w[o], v, sum[r][o]);
      }
    }
  };
  add([&](int o, int64_t k) HWY_ATTR { return natural_vector<F>(weights.bytes[o], b * kBlockK + k); }, 0, whole);
  if (HWY_UNLIKELY(values != whole)) {
    float rest[O][32];
    for (int o = 0; o < O; ++o) decode_group_plain<F>(weights.bytes[o], weights.scales[o], b * kBlockGroups + whole / 32, values - whole, rest[o]);
    add([&](int o, int64_t k) HWY_ATTR { return load8(rest[o] + (k - whole)); }, whole, whole + 32);
  }
  if ((b + 1) * kBlockK < p.weight.k) {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < O; ++o) store8(sum[r][o], sums + 8 * (r * O + o));
    }
    return;
  }
  for (int r = 0; r < R; ++r) reduce_to<O>(sum[r], p.y + (row + r) * p.y_stride + n - p.y_first, step);
}

// Between blocks of K: of three outputs and up to four rows, [pass / 3][half of the rows].
struct NaturalSums {
  alignas(64) float of[kPassOutputs / 3][2][12 * 8];
};

// N outputs, O at a time, of the first R rows and the S after them. Short rows are asked for two turns ahead.
template <WeightFormat F, int R, int S, int O, int64_t N>
HWY_INLINE void natural_pass(const Product& p, int64_t n, int64_t step, NaturalSums& sums) {
  for (int64_t b = 0; b * kBlockK < p.weight.k; ++b) {
    for (int64_t o = 0; o < N; o += O) {
      if (asks_ahead<F>(p)) {
        for (int i = 0; i < O; ++i) ask_for_block<F>(p, n + (o + i) * step + 2, b * kBlockGroups);
      }
      natural_block<F, R, O>(p, n + o * step, step, 0, b, sums.of[o / O][0]);
      if constexpr (S > 0) natural_block<F, S, O>(p, n + o * step, step, R, b, sums.of[o / O][1]);
    }
  }
}

template <WeightFormat F, int R, int S>
void natural_range(const Product& p, int64_t begin, int64_t end) {
  NaturalSums sums = {};
  const int64_t step = (end - begin) / kPassOutputs;
  for (int64_t n = begin; n < begin + step; ++n) natural_pass<F, R, S, 3, kPassOutputs>(p, n, step, sums);
  for (int64_t n = begin + kPassOutputs * step; n < end; ++n) natural_pass<F, R, S, 1, 1>(p, n, 1, sums);
}

// ---- tile path

// The packed bytes that come after block b of output n: the output's next block, or after the last one the first block of the output
// that takes its place in the next pass over K. The hardware does not see a stream in pieces of 128 to 512 bytes a row apart.
template <WeightFormat F>
HWY_INLINE const uint8_t* bytes_ahead(const Product& p, int64_t n, int64_t b, int64_t pass) {
  const bool last = (b + 1) * kBlockK >= p.weight.k;
  return p.weight.data + (last ? n + pass : n) * p.weight_row_bytes + (last ? 0 : (b + 1) * kBlockGroups * group_bytes<F>());
}

// Sums of a block of up to 4 rows x 3 outputs: twelve vectors side by side, so that a block is six cache lines and blocks follow each other
// in the order of their use.
inline constexpr int64_t kBlockSums = 12 * 8;

// Up to here a tile is one part: it, the rows and the sums all stay in L1.
inline constexpr int64_t kOnePartRows = 16;

struct TileScratch {
  alignas(64) float weights[kTileOutputs * kBlockK];                         // [output][value of K]
  alignas(64) float sums[kPanelRows / 4 * (kTileOutputs / 3) * kBlockSums];  // [4 rows][3 outputs][row, output][lane]
};

template <WeightFormat F>
HWY_INLINE void decode_tile_plain(const Product& p, int64_t n, int64_t outputs, int64_t b, float* tile) {
  const int64_t values = std::min(p.weight.k - b * kBlockK, kBlockK);
  for (int64_t o = 0; o < outputs; ++o) {
    const WeightRows<F, 1> weights(p, n + o, 1);
    for (int64_t i = 0; i < values; i += 32) {
      decode_group_plain<F>(weights.bytes[0], weights.scales[0], b * kBlockGroups + i / 32, std::min<int64_t>(32, values - i), tile + o * kBlockK + i);
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
  for (int64_t o = 0; o < outputs; ++o) {
    const WeightRows<F, 1> weights(p, n + o, 1);
    const uint8_t* ahead = bytes_ahead<F>(p, n + o, b, outputs);
    float* out = tile + o * kBlockK;
    for (int64_t run = 0; run * kRunGroups < groups; ++run) {
      constexpr int64_t kRunBytes = kRunGroups * group_bytes<F>();
      for (int64_t i = 0; i < kRunBytes; i += 64) prefetch_line(ahead + run * kRunBytes + i);
      const RunScale<F> scale(weights.scales[0], first / kRunGroups + run, watch);
      for (int64_t g = run * kRunGroups; g < std::min((run + 1) * kRunGroups, groups); ++g) {
        F8 w[4];
        decode_group(weights.bytes[0], scale, first + g, w, watch);
        for (int j = 0; j < 4; ++j) store8(w[j], out + 32 * g + 8 * j);
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

// R rows x O outputs over one block: sums += tile . x.
template <int R, int O>
HWY_INLINE void tile_block(const float* tile, const float* const* x, const TileStep& step, float* sums, float* y) {
  F8 sum[R][O];
  if (step.first) {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < O; ++o) sum[r][o] = zero8();
    }
  } else {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < O; ++o) sum[r][o] = load8(sums + 8 * (r * O + o));
    }
  }
  for (int64_t k = 0; k < step.values; k += 8) {
    F8 w[O];
    for (int o = 0; o < O; ++o) w[o] = load8(tile + o * kBlockK + k);
    for (int r = 0; r < R; ++r) {
      const F8 v = load8_once(x[r] + k);
      for (int o = 0; o < O; ++o) sum[r][o] = fma(w[o], v, sum[r][o]);
    }
  }
  if (!step.last) {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < O; ++o) store8(sum[r][o], sums + 8 * (r * O + o));
    }
    return;
  }
  for (int r = 0; r < R; ++r) reduce_to<O>(sum[r], y + r * step.y_stride, 1);
}

template <int R>
void tile_rows(const float* tile, int64_t outputs, const float* const* x, const TileStep& step, float* sums, float* y) {
  int64_t o = 0;
  for (; o + 3 <= outputs; o += 3, sums += kBlockSums) tile_block<R, 3>(tile + o * kBlockK, x, step, sums, y + o);
  if (outputs - o == 2) tile_block<R, 2>(tile + o * kBlockK, x, step, sums, y + o);
  if (outputs - o == 1) tile_block<R, 1>(tile + o * kBlockK, x, step, sums, y + o);
}

// Rows of the next block when `left` remain: as many threes as it takes for the rest to be fours (5 is 3 and 2). Two rows or one keep too few
// sums in flight.
HWY_INLINE int64_t block_height(int64_t left) { return left <= 3 ? left : left % 4 == 0 || left % 4 == 3 ? 4 : 3; }

// The decoded block b of outputs [begin, begin + outputs) meets rows [row_begin, row_end).
void tile_pass(const Product& p, int64_t begin, int64_t outputs, int64_t b, int64_t row_begin, int64_t row_end, TileScratch& s) {
  const int64_t row_sums = (outputs + 2) / 3 * kBlockSums;  // of one block of rows
  const TileStep step{
      .values = (std::min(p.weight.k - b * kBlockK, kBlockK) + 31) / 32 * 32, .first = b == 0, .last = (b + 1) * kBlockK >= p.weight.k, .y_stride = p.y_stride};
  const bool ask_ahead = !step.last && p.rows > kOnePartRows;  // few rows are in L2 as a whole
  for (int64_t part = 0; part < outputs; part += kPartOutputs) {
    const float* tile = s.weights + part * kBlockK;
    const int64_t count = std::min(kPartOutputs, outputs - part);
    float* sums = s.sums + part / 3 * kBlockSums;
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

// ---- choice of path

template <WeightFormat F>
void product_in_format(const Product& p, int64_t begin, int64_t end, int64_t row_begin, int64_t row_end) {
  if (p.rows > direct_rows(F)) {
    TileScratch s;
    const int64_t step = p.rows <= kOnePartRows ? kPartOutputs : kTileOutputs;
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

void add_product_kernels(CpuIsa isa, CpuKernels& kernels) { kernels.product = DSV4_CPU_KERNEL(product, isa); }

}  // namespace dsv4
#endif
