// Products of few rows: the direct and the natural path of product_kernels.cc, and what all paths know of packed weight rows.
#if defined(DSV4_CPU_PRODUCT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_PRODUCT_ROWS_INL_H_
#undef DSV4_CPU_PRODUCT_ROWS_INL_H_
#else
#define DSV4_CPU_PRODUCT_ROWS_INL_H_
#endif

#include <algorithm>

#include "backends/cpu/decode-inl.h"
#include "backends/cpu/product.h"

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

// Rows of x from `row` on, from a group on.
template <int R>
HWY_INLINE void rows_at(const Product& p, int64_t row, int64_t group, const float* (&x)[R]) {
  for (int r = 0; r < R; ++r) x[r] = p.x.group(p.row(row + r), group);
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
    rows_at<R>(p, 0, first, x);
    add_groups<F>(weights, first, std::min(kBlockGroups, whole - first), x, sum, watch);
  }
  if (HWY_UNLIKELY(p.weight.k % 32 != 0)) {
    rows_at<R>(p, 0, whole, x);
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
    rows_at<R>(p, 0, first, x);
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
  rows_at<R>(p, row, b * kBlockGroups, x);
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

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#endif
