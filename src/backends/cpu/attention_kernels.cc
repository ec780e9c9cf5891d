// Kernels of attention and of the indexer's scores over one chunk of 64 decoded keys. Four heads x three keys (scores) and six heads x
// 16 values (values) live in registers; the chunk (130 KiB at 512 values) stays in L2 while all heads pass over it. Bound by the fma units.
//
// Order of sums: a score is eight partial sums over d, fma, ascending, then the lane tree. Within a chunk the probabilities add up in
// eight lanes by key slot mod 8 (slots outside the row's range count as e^-inf = 0), and o takes the keys one by one, ascending, after its
// rescaling. Chunks follow each other in the row's key order, and their borders depend on the row alone (sparse_attention.cc).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention_kernels.cc"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <limits>

#include "backends/cpu/kernels.h"
#include "backends/cpu/rows-inl.h"
#include "backends/cpu/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

template <int H, int K>
HWY_INLINE void score_block(const float* q, int64_t dim, const DecodedKeys& keys, int64_t key, float* scores) {
  F8 sum[H][K];
  for (int h = 0; h < H; ++h) {
    for (int k = 0; k < K; ++k) sum[h][k] = zero8();
  }
  for (int64_t d = 0; d < dim; d += kSliceDim) {
    const float* slice = keys.values + d / kSliceDim * keys.slice_stride + key * kSliceDim;
    for (int64_t v = 0; v < kSliceDim; v += 8) {
      F8 value[K];
      for (int k = 0; k < K; ++k) value[k] = load8(slice + k * kSliceDim + v);
      for (int h = 0; h < H; ++h) {
        const F8 x = load8_once(q + h * dim + d + v);
        for (int k = 0; k < K; ++k) sum[h][k] = fma(x, value[k], sum[h][k]);
      }
    }
  }
  if constexpr (H == 4) {
    for (int k = 0; k < K; ++k) {
      float four[4];
      reduce_add8x4(sum[0][k], sum[1][k], sum[2][k], sum[3][k], four);
      for (int h = 0; h < H; ++h) scores[h * kChunkKeys + key + k] = four[h];
    }
  } else {
    for (int h = 0; h < H; ++h) {
      float* to = scores + h * kChunkKeys + key;
      int k = 0;
      for (; k + 4 <= K; k += 4) reduce_add8x4(sum[h][k], sum[h][k + 1], sum[h][k + 2], sum[h][k + 3], to + k);
      for (; k < K; ++k) to[k] = reduce_add8(sum[h][k]);
    }
  }
}

// 4 heads x K keys where two heads share a register: the same chains as score_block<4, K>.
template <int K>
HWY_INLINE void score_wide(const float* q, int64_t dim, const DecodedKeys& keys, int64_t key, float* scores) {
  constexpr int kVectors = 4 / kWide;
  FWide sum[kVectors][K];
  for (int h = 0; h < kVectors; ++h) {
    for (int k = 0; k < K; ++k) sum[h][k] = zero_wide();
  }
  for (int64_t d = 0; d < dim; d += kSliceDim) {
    const float* slice = keys.values + d / kSliceDim * keys.slice_stride + key * kSliceDim;
    for (int64_t v = 0; v < kSliceDim; v += 8) {
      FWide x[kVectors];
      for (int h = 0; h < kVectors; ++h) x[h] = load_apart(q + h * kWide * dim + d + v, dim);
      for (int k = 0; k < K; ++k) {
        const FWide value = load_same(slice + k * kSliceDim + v);
        for (int h = 0; h < kVectors; ++h) sum[h][k] = fma(x[h], value, sum[h][k]);
      }
    }
  }
  for (int k = 0; k < K; k += 2) {
    float of[4 * kWide];  // four heads of key k, four of key k + 1
    reduce_wide_x4(sum[0][k], sum[kVectors - 1][k], sum[0][k + 1], sum[kVectors - 1][k + 1], of);
    for (int h = 0; h < 4; ++h) {
      for (int i = 0; i < 2; ++i) scores[h * kChunkKeys + key + k + i] = of[4 * i + h];
    }
  }
}

// H heads against keys [first, last), in blocks of eight to twelve sums, which keep both fma units busy and fit 16 registers.
template <int H>
HWY_INLINE void score_keys(const float* q, int64_t dim, const DecodedKeys& keys, int64_t first, int64_t last, float* scores) {
  int64_t k = first;
  const auto block = [&]<int K>() HWY_ATTR {
    score_block<H, K>(q, dim, keys, k, scores);
    k += K;
  };
  if constexpr (H == 4 && kWide > 1) {
    const auto wide = [&]<int K>() HWY_ATTR {
      score_wide<K>(q, dim, keys, k, scores);
      k += K;
    };
    while (last - k >= 8) wide.template operator()<8>();
    if (last - k >= 4) wide.template operator()<4>();
  }
  if constexpr (H >= 3) {
    while (last - k == 3 || last - k > 4) block.template operator()<3>();  // four are two and two
  } else {
    if constexpr (H == 1) {
      while (last - k >= 8) block.template operator()<8>();
    }
    while (last - k >= 4) block.template operator()<4>();
  }
  while (last - k >= 2) block.template operator()<2>();
  if (last - k == 1) block.template operator()<1>();
}

// Heads in the outer loop: their queries (8 KiB at 512 values) and a few keys are in L1.
void chunk_scores(const float* q, int64_t heads, int64_t dim, const DecodedKeys& keys, int64_t first, int64_t last, float* scores) {
  int64_t h = 0;
  const auto block = [&]<int H>() HWY_ATTR {
    score_keys<H>(q + h * dim, dim, keys, first, last, scores + h * kChunkKeys);
    h += H;
  };
  while (heads - h >= 4) block.template operator()<4>();
  if (heads - h == 3) block.template operator()<3>();
  if (heads - h == 2) block.template operator()<2>();
  if (heads - h == 1) block.template operator()<1>();
}

// o[h][d ..] = o[h][d ..] keep[h] + sum over keys of p * value, for H heads and the values of V / 2 slices; keys ascending.
template <int H, int V>
HWY_INLINE void value_block(const float* p, const float* keep, const float* slice, int64_t stride, int64_t first, int64_t last, float* o, int64_t dim) {
  constexpr int kPerSlice = 2 / kWide, kVectors = V / kWide, kVector = 8 * kWide;
  FWide sum[H][kVectors];
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < kVectors; ++v) sum[h][v] = mul(load_wide(o + h * dim + kVector * v), set_wide(keep[h]));
  }
  for (int64_t k = first; k < last; ++k) {
    FWide value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load_wide(slice + v / kPerSlice * stride + k * kSliceDim + v % kPerSlice * kVector);
    for (int h = 0; h < H; ++h) {
      const FWide weight = set_wide(p[h * kChunkKeys + k]);
      for (int v = 0; v < kVectors; ++v) sum[h][v] = fma(weight, value[v], sum[h][v]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < kVectors; ++v) store_wide(sum[h][v], o + h * dim + kVector * v);
  }
}

// One slice (two F8) at a time with four to six heads, eight to twelve sums; fewer heads take two slices for as many. Where a slice is one register
// and there are 32, four slices.
HWY_INLINE void value_slices(const float* p, const float* keep, int64_t heads, const float* slice, int64_t stride, int64_t slices, int64_t first, int64_t last,
                             float* o, int64_t dim) {
  int64_t h = 0;
  const auto block = [&]<int H>() HWY_ATTR {
    int64_t i = 0;
    const auto at = [&]<int V>() HWY_ATTR {
      value_block<H, V>(p + h * kChunkKeys, keep + h, slice + i * stride, stride, first, last, o + h * dim + i * kSliceDim, dim);
      i += V / 2;
    };
    if constexpr (kWide > 1) {
      while (i + 4 <= slices) at.template operator()<8>();
    }
    while ((H < 4 || kWide > 1) && i + 2 <= slices) at.template operator()<4>();
    while (i < slices) at.template operator()<2>();
    h += H;
  };
  for (int64_t left = heads; left > 0; left = heads - h) {
    switch (left >= 10 ? 6 : left == 9 ? 5 : left >= 7 ? 4 : left) {
      case 6: block.template operator()<6>(); break;
      case 5: block.template operator()<5>(); break;
      case 4: block.template operator()<4>(); break;
      case 3: block.template operator()<3>(); break;
      case 2: block.template operator()<2>(); break;
      default: block.template operator()<1>(); break;
    }
  }
}

void chunk_values(const float* p, const float* keep, int64_t heads, int64_t dim, const DecodedKeys& keys, int64_t first, int64_t last, int64_t d_begin,
                  int64_t d_end, float* o) {
  constexpr int64_t kSlices = 2 * kWide;
  for (int64_t d = d_begin; d < d_end; d += kSlices * kSliceDim) {
    const int64_t slices = std::min(kSlices, (d_end - d) / kSliceDim);
    value_slices(p, keep, heads, keys.values + d / kSliceDim * keys.slice_stride, keys.slice_stride, slices, first, last, o + d, dim);
  }
}

// Keys outside [first, last) count as e^-inf = 0, which changes neither top nor sum: only the eights that hold a key are looked at.
void chunk_softmax(float* scores, int64_t heads, float scale, int64_t first, int64_t last, float* top, float* sum, float* keep) {
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  const int64_t begin = first / 8 * 8, end = (last + 7) / 8 * 8;
  for (int64_t h = 0; h < heads; ++h) {
    float* s = scores + h * kChunkKeys;
    std::fill(s + begin, s + first, kMinusInf);
    std::fill(s + last, s + end, kMinusInf);
    F8 largest = set8(top[h]);
    for (int64_t k = begin; k < end; k += 8) {
      const F8 v = mul(load8(s + k), set8(scale));
      largest = max8(v, largest);
      store8(v, s + k);
    }
    const float new_top = reduce_max8(largest);
    float change[8] = {top[h] - new_top};
    store8(exp8(load8(change)), change);
    F8 total = zero8();
    for (int64_t k = begin; k < end; k += 8) {
      const F8 p = exp8(sub(load8(s + k), set8(new_top)));
      total = add(total, p);
      store8(p, s + k);
    }
    sum[h] = std::fma(sum[h], change[0], reduce_add8(total));
    top[h] = new_top;
    keep[h] = change[0];
  }
}

void attention_finish(const float* o, float sum, int64_t dim, const float* cos_sin, int64_t rope, float* out) {
  const float inverse = 1.0f / sum;
  int64_t d = 0;
  for (; d + 8 <= dim; d += 8) store8(mul(load8(o + d), set8(inverse)), out + d);
  for (; d < dim; ++d) out[d] = o[d] * inverse;
  rotate_row<true>(out + dim - rope, cos_sin, rope);
}

void indexer_total(const float* scores, const float* weight, int64_t heads, int64_t first, int64_t last, float* total) {
  const F8 minus_inf = set8(-std::numeric_limits<float>::infinity());
  for (int64_t k = first / 8 * 8; k < last; k += 8) {
    F8 sum = zero8();
    // max8(x, 0) of a NaN gives 0; the reference's max(x, 0) keeps it, so NaN is passed on by hand.
    for (int64_t h = 0; h < heads; ++h) {
      const F8 s = load8(scores + h * kChunkKeys + k);
      sum = fma(set8(weight[h]), select8(eq8(s, s), max8(s, zero8()), s), sum);
    }
    float values[8];
    store8(select8(eq8(sum, sum), sum, minus_inf), values);
    for (int64_t i = std::max(first, k); i < std::min(last, k + 8); ++i) total[i] = values[i - k];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4 {

HWY_EXPORT(chunk_scores);
HWY_EXPORT(chunk_softmax);
HWY_EXPORT(chunk_values);
HWY_EXPORT(attention_finish);
HWY_EXPORT(indexer_total);

void add_attention_kernels(CpuIsa isa, CpuKernels& k) {
  k.piece_keys = isa == CpuIsa::kAvx512 ? 16 : 8;
  k.chunk_scores = DSV4_CPU_KERNEL(chunk_scores, isa);
  k.chunk_softmax = DSV4_CPU_KERNEL(chunk_softmax, isa);
  k.chunk_values = DSV4_CPU_KERNEL(chunk_values, isa);
  k.attention_finish = DSV4_CPU_KERNEL(attention_finish, isa);
  k.indexer_total = DSV4_CPU_KERNEL(indexer_total, isa);
}

}  // namespace dsv4
#endif
