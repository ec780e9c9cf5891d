// Kernels of attention and of the indexer's scores over one chunk of 64 decoded keys. Four heads x three keys (scores) and three heads x
// 32 values (values) live in registers; the chunk (130 KiB at 512 values) stays in L2 while all heads pass over it. Bound by the fma units.
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

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

template <int H, int K>
HWY_INLINE void score_block(const float* q, int64_t dim, const float* chunk, int64_t key, float* scores) {
  F8 sum[H][K];
  for (int h = 0; h < H; ++h) {
    for (int k = 0; k < K; ++k) sum[h][k] = zero8();
  }
  for (int64_t d = 0; d < dim; d += kSliceDim) {
    const float* slice = chunk + d / kSliceDim * kSliceStride + key * kSliceDim;
    for (int64_t v = 0; v < kSliceDim; v += 8) {
      F8 keys[K];
      for (int k = 0; k < K; ++k) keys[k] = load8(slice + k * kSliceDim + v);
      for (int h = 0; h < H; ++h) {
        const F8 x = load8(q + h * dim + d + v);
        for (int k = 0; k < K; ++k) sum[h][k] = fma(x, keys[k], sum[h][k]);
      }
    }
  }
  for (int k = 0; k < K; ++k) {
    if constexpr (H == 4) {
      float four[4];
      reduce_add8x4(sum[0][k], sum[1][k], sum[2][k], sum[3][k], four);
      for (int h = 0; h < H; ++h) scores[h * kChunkKeys + key + k] = four[h];
    } else {
      for (int h = 0; h < H; ++h) scores[h * kChunkKeys + key + k] = reduce_add8(sum[h][k]);
    }
  }
}

void chunk_scores(const float* q, int64_t heads, int64_t dim, const float* chunk, int64_t first, int64_t last, float* scores) {
  int64_t k = first;
  const auto all_heads = [&]<int K>() HWY_ATTR {
    int64_t h = 0;
    for (; h + 4 <= heads; h += 4) score_block<4, K>(q + h * dim, dim, chunk, k, scores + h * kChunkKeys);
    for (; h < heads; ++h) score_block<1, K>(q + h * dim, dim, chunk, k, scores + h * kChunkKeys);
  };
  for (; k + 3 <= last; k += 3) all_heads.template operator()<3>();
  for (; k < last; ++k) all_heads.template operator()<1>();
}

// o[h][d ..] += sum over keys of p * value, for H heads and the values of V / 2 slices; keys ascending.
template <int H, int V>
HWY_INLINE void value_block(const float* p, const float* slice, int64_t first, int64_t last, float* o, int64_t dim) {
  F8 sum[H][V];
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < V; ++v) sum[h][v] = load8(o + h * dim + 8 * v);
  }
  for (int64_t k = first; k < last; ++k) {
    F8 value[V];
    for (int v = 0; v < V; ++v) value[v] = load8(slice + v / 2 * kSliceStride + k * kSliceDim + v % 2 * 8);
    for (int h = 0; h < H; ++h) {
      const F8 weight = set8(p[h * kChunkKeys + k]);
      for (int v = 0; v < V; ++v) sum[h][v] = fma(weight, value[v], sum[h][v]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < V; ++v) store8(sum[h][v], o + h * dim + 8 * v);
  }
}

// V / 2 slices from d on, all heads: three heads x four vectors are twelve sums.
template <int V>
HWY_INLINE void value_heads(const float* p, int64_t heads, const float* slice, int64_t first, int64_t last, float* o, int64_t dim) {
  int64_t h = 0;
  for (; h + 3 <= heads; h += 3) value_block<3, V>(p + h * kChunkKeys, slice, first, last, o + h * dim, dim);
  if (heads - h == 2) value_block<2, V>(p + h * kChunkKeys, slice, first, last, o + h * dim, dim);
  if (heads - h == 1) value_block<1, V>(p + h * kChunkKeys, slice, first, last, o + h * dim, dim);
}

void chunk_attend(float* scores, int64_t heads, int64_t dim, float scale, const float* chunk, int64_t first, int64_t last, float* o, float* top, float* sum) {
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  for (int64_t h = 0; h < heads; ++h) {
    float* s = scores + h * kChunkKeys;
    std::fill(s, s + first, kMinusInf);
    std::fill(s + last, s + kChunkKeys, kMinusInf);
    F8 largest = set8(top[h]);
    for (int64_t k = 0; k < kChunkKeys; k += 8) {
      const F8 v = mul(load8(s + k), set8(scale));
      largest = max8(v, largest);
      store8(v, s + k);
    }
    const float new_top = reduce_max8(largest);
    float change[8] = {top[h] - new_top};
    store8(exp8(load8(change)), change);
    F8 total = zero8();
    for (int64_t k = 0; k < kChunkKeys; k += 8) {
      const F8 p = exp8(sub(load8(s + k), set8(new_top)));
      total = add(total, p);
      store8(p, s + k);
    }
    sum[h] = std::fma(sum[h], change[0], reduce_add8(total));
    top[h] = new_top;
    const F8 keep = set8(change[0]);
    for (int64_t d = 0; d < dim; d += 8) store8(mul(load8(o + h * dim + d), keep), o + h * dim + d);
  }
  int64_t d = 0;
  for (; d + 2 * kSliceDim <= dim; d += 2 * kSliceDim) value_heads<4>(scores, heads, chunk + d / kSliceDim * kSliceStride, first, last, o + d, dim);
  if (d < dim) value_heads<2>(scores, heads, chunk + d / kSliceDim * kSliceStride, first, last, o + d, dim);
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
HWY_EXPORT(chunk_attend);
HWY_EXPORT(attention_finish);
HWY_EXPORT(indexer_total);

void add_attention_kernels(CpuIsa isa, CpuKernels& k) {
  k.chunk_scores = DSV4_CPU_KERNEL(chunk_scores, isa);
  k.chunk_attend = DSV4_CPU_KERNEL(chunk_attend, isa);
  k.attention_finish = DSV4_CPU_KERNEL(attention_finish, isa);
  k.indexer_total = DSV4_CPU_KERNEL(indexer_total, isa);
}

}  // namespace dsv4
#endif
