// Kernels of the indexer's scores in integers (index_scores.h). Bound by the integer units: per key, head and group of 32 an eighth of 20 instructions.
//
// Order of sums: those of a group are exact; a score is an fma chain over the groups, ascending, of the group's sum and the product of the two scales.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/index_kernels.cc"
#include "hwy/foreach_target.h"

#include <cmath>
#include <cstring>

#include "backends/cpu/kernels.h"
#include "backends/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

// Twice the value of an E2M1 code, and 12.
constexpr uint8_t kDoubledCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

#if DSV4_CPU_PORTABLE_LANES

void read_index_keys(const uint8_t* const* data, const uint8_t* const* scales, int64_t dim, const IndexKeys& to) {
  for (int64_t key = 0; key < kIndexLanes; ++key) {
    for (int64_t byte = 0; byte < dim / 2; ++byte) {
      uint8_t* out = to.values + byte / 4 * 64 + key * 4 + byte % 4;
      out[0] = kDoubledCodes[data[key][byte] & 15];
      out[32] = kDoubledCodes[data[key][byte] >> 4];
    }
    for (int64_t g = 0; g < dim / kIndexGroup; ++g) to.scales[g * kIndexLanes + key] = e8m0_to_float(scales[key][g]);
  }
}

// The eight vectors of a group.
struct KeyGroup {
  const uint8_t* bytes;
  explicit KeyGroup(const uint8_t* p) : bytes(p) {}
};

HWY_INLINE F8 group_products(const KeyGroup& keys, const int8_t* query, int32_t offset) {
  F8 out;
  for (int64_t key = 0; key < kIndexLanes; ++key) {
    int32_t sum = -offset;
    for (int64_t v = 0; v < kIndexGroupVectors; ++v) {
      for (int64_t i = 0; i < 4; ++i) sum += keys.bytes[32 * v + 4 * key + i] * query[4 * v + i];
    }
    out.v[key] = static_cast<float>(sum);
  }
  return out;
}

#else

HWY_INLINE __m256i load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Words d .. d + 7 of eight rows become eight vectors of one word of each row.
HWY_INLINE void transpose_words(const uint8_t* const* rows, int64_t d, __m256i (&out)[8]) {
  __m256i pair[8], four[8];
  for (int i = 0; i < 4; ++i) {
    const __m256i a = load_bytes(rows[2 * i] + 4 * d), b = load_bytes(rows[2 * i + 1] + 4 * d);
    pair[2 * i] = _mm256_unpacklo_epi32(a, b);      // words 0 1 | 4 5 of rows 2i, 2i + 1
    pair[2 * i + 1] = _mm256_unpackhi_epi32(a, b);  // words 2 3 | 6 7
  }
  for (int i = 0; i < 2; ++i) {
    four[4 * i] = _mm256_unpacklo_epi64(pair[4 * i], pair[4 * i + 2]);  // words 0 | 4 of rows 4i .. 4i + 3
    four[4 * i + 1] = _mm256_unpackhi_epi64(pair[4 * i], pair[4 * i + 2]);
    four[4 * i + 2] = _mm256_unpacklo_epi64(pair[4 * i + 1], pair[4 * i + 3]);
    four[4 * i + 3] = _mm256_unpackhi_epi64(pair[4 * i + 1], pair[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(four[i], four[4 + i], 0x20);
    out[4 + i] = _mm256_permute2x128_si256(four[i], four[4 + i], 0x31);
  }
}

void read_index_keys(const uint8_t* const* data, const uint8_t* const* scales, int64_t dim, const IndexKeys& to) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kDoubledCodes)));
  const __m256i low_nibbles = _mm256_set1_epi8(15);
  const auto put = [&](__m256i words, int64_t d) HWY_ATTR {
    const __m256i low = _mm256_and_si256(words, low_nibbles), high = _mm256_and_si256(_mm256_srli_epi16(words, 4), low_nibbles);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.values + 64 * d), _mm256_shuffle_epi8(table, low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.values + 64 * d + 32), _mm256_shuffle_epi8(table, high));
  };
  const int64_t words = dim / 8;
  int64_t d = 0;
  for (; d + 8 <= words; d += 8) {
    __m256i turned[8];
    transpose_words(data, d, turned);
    for (int i = 0; i < 8; ++i) put(turned[i], d + i);
  }
  for (; d < words; ++d) {
    int32_t word[8];
    for (int key = 0; key < 8; ++key) std::memcpy(word + key, data[key] + 4 * d, 4);
    put(load_bytes(word), d);
  }
  const int64_t groups = dim / kIndexGroup;
  for (int64_t g = 0; g < groups; ++g) {
    int32_t code[8];
    for (int key = 0; key < 8; ++key) code[key] = scales[key][g];
    const __m256i c = load_bytes(code);
    __m256i bits = _mm256_slli_epi32(c, 23);
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x00400000), _mm256_cmpeq_epi32(c, _mm256_setzero_si256()));  // 2^-127
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), _mm256_cmpeq_epi32(c, _mm256_set1_epi32(255)));  // NaN
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.scales + 8 * g), bits);
  }
}

// The eight vectors of a group, in registers while all heads pass.
struct KeyGroup {
  __m256i v[kIndexGroupVectors];
  HWY_INLINE explicit KeyGroup(const uint8_t* p) {
    for (int64_t i = 0; i < kIndexGroupVectors; ++i) v[i] = load_bytes(p + 32 * i);
  }
};

// Bytes to sums of 32: pairs of products are at most 2 * 24 * 12, eight of them fit 16 bits.
HWY_INLINE F8 group_products(const KeyGroup& keys, const int8_t* query, int32_t offset) {
  const auto product = [&](int64_t v) HWY_ATTR {
    int32_t four;
    std::memcpy(&four, query + 4 * v, 4);
    return _mm256_maddubs_epi16(keys.v[v], _mm256_set1_epi32(four));
  };
  const __m256i a = _mm256_add_epi16(product(0), product(1)), b = _mm256_add_epi16(product(2), product(3));
  const __m256i c = _mm256_add_epi16(product(4), product(5)), d = _mm256_add_epi16(product(6), product(7));
  const __m256i sums = _mm256_madd_epi16(_mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(c, d)), _mm256_set1_epi16(1));
  return F8{_mm256_cvtepi32_ps(_mm256_sub_epi32(sums, _mm256_set1_epi32(offset)))};
}

#endif

void index_scores(const IndexKeys& keys, const IndexQuery& query, int64_t heads, int64_t dim, float* scores) {
  const int64_t groups = dim / kIndexGroup;
  for (int64_t g = 0; g < groups; ++g) {
    const KeyGroup group(keys.values + g * kIndexGroupVectors * 32);
    const F8 key_scales = load8(keys.scales + g * kIndexLanes);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = h * groups + g;
      const F8 products = group_products(group, query.values + at * kIndexGroup, query.offsets[at]);
      const F8 scale = mul(key_scales, set8(query.scales[at]));
      float* score = scores + h * kChunkKeys;
      store8(g == 0 ? mul(products, scale) : fma(products, scale, load8(score)), score);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4 {

bool make_index_query(const float* q, int64_t heads, int64_t dim, const IndexQuery& out) {
  const int64_t groups = dim / kIndexGroup;
  for (int64_t at = 0; at < heads * groups; ++at) {
    const float* x = q + at * kIndexGroup;
    int8_t* values = out.values + at * kIndexGroup;
    const float scale = e8m0_to_float(e2m1_scale_code(x, kIndexGroup)), doubled = 2 / scale;
    int32_t sum = 0;
    for (int64_t i = 0; i < kIndexGroup; ++i) {
      const float v = x[i] * doubled;
      if (!(std::fabs(v) <= 12) || v != static_cast<float>(static_cast<int32_t>(v))) return false;
      // Value 8 w + 2 b + (0 or 1) of a row lies in byte b of word w, in vector 2 w (or 2 w + 1).
      values[i / 8 * 8 + i % 2 * 4 + i % 8 / 2] = static_cast<int8_t>(v);
      sum += static_cast<int32_t>(v);
    }
    out.scales[at] = scale / 4;
    out.offsets[at] = 12 * sum;
  }
  return true;
}

HWY_EXPORT(read_index_keys);
HWY_EXPORT(index_scores);

void add_index_kernels(CpuIsa isa, CpuKernels& k) {
  k.read_index_keys = DSV4_CPU_KERNEL(read_index_keys, isa);
  k.index_scores = DSV4_CPU_KERNEL(index_scores, isa);
}

}  // namespace dsv4
#endif
