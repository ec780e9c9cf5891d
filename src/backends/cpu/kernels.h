// The kernels of one instruction set: loops over one row or block, single-threaded, without allocation. The operators (one file each)
// cut their work, own the scratch memory and call these; they are compiled once, the kernels once per set.
#pragma once

#include <cstdint>

#include "backends/cpu/dispatch.h"
#include "backends/cpu/index_scores.h"
#include "backends/cpu/packed_rows.h"
#include "backends/cpu/product.h"
#include "cache/paged_rows.h"

namespace dsv4 {

// Keys of attention and indexer are taken in chunks of at most kChunkKeys.
inline constexpr int64_t kChunkKeys = 64;
inline constexpr int64_t kSliceDim = 16;
inline int64_t padded_dim(int64_t dim) { return (dim + kSliceDim - 1) / kSliceDim * kSliceDim; }

// Room for some keys, decoded to float32 and cut into slices of 16 values: value d of key k lies at (d / 16) * slice_stride + k * 16 + d % 16,
// so that one slice of all keys is contiguous. Dimensions are padded to a multiple of 16 with zeros. Slices of 64 keys are one spare row
// apart: those of a key do not fall into the same L1 set.
struct DecodedKeys {
  float* values = nullptr;
  int64_t slice_stride = 0;

  DecodedKeys(float* memory, int64_t keys) : values(memory), slice_stride(stride(keys)) {}
  static int64_t stride(int64_t keys) { return (keys % 64 == 0 ? keys + 1 : keys) * kSliceDim; }
  static int64_t floats(int64_t keys, int64_t dim) { return padded_dim(dim) / kSliceDim * stride(keys); }
};

// Most residual streams of a hyper-connection (ops/hc_pre.h).
inline constexpr int64_t kMaxStreams = 8;

struct CpuKernels {
  CpuIsa isa = CpuIsa::kScalar;

  // ---- products (product_kernels.cc): outputs [begin, end) of rows [row_begin, row_end)
  void (*product)(const Product& p, int64_t begin, int64_t end, int64_t row_begin, int64_t row_end) = nullptr;
  // Rows up to which weights meet the activations in registers; beyond, they are decoded into a tile first.
  int64_t (*direct_rows)(WeightFormat format) = nullptr;
  void (*pack_row)(const float* x, int64_t k, ActivationRounding rounding, PackOrder order, const PackedRows& to, int64_t row) = nullptr;
  // silu(min(gate, limit)) * clamp(up) * weight for n values from k0 on (a multiple of 128), rounded, into packed row `row`.
  void (*pack_expert_activation)(const float* gate, const float* up, int64_t k0, int64_t n, float limit, float weight, ActivationRounding rounding,
                                 PackOrder order, const PackedRows& to, int64_t row) = nullptr;

  // ---- rows (row_kernels.cc)
  void (*embed_row)(const uint16_t* table_row, int64_t dim, int64_t streams, float* out) = nullptr;
  void (*rms_norm_row)(const float* x, const uint16_t* weight, int64_t n, float eps, float* out) = nullptr;
  void (*swiglu_row)(const float* gate, const float* up, int64_t n, float limit, float* out) = nullptr;
  void (*add_row)(const float* x, int64_t n, float* y) = nullptr;  // y += x
  int32_t (*argmax_row)(const float* x, int64_t n) = nullptr;
  void (*query_norm_rope_head)(float* q, int64_t dim, const float* cos_sin, int64_t rope, float eps) = nullptr;
  void (*indexer_query_head)(float* q, int64_t dim, const float* cos_sin, int64_t rope, bool round_e2m1) = nullptr;
  // h'[k][d] = post[k] y[d] + sum_j comb[j][k] h[j][d], j ascending, for n values of d
  void (*hc_expand)(const float* y, const float* post, const float* comb, int64_t streams, int64_t stride, int64_t n, float* h) = nullptr;

  // ---- hyper-connection, in double (hc_kernels.cc)
  // out[r][i] = w[i] . f[r] for `outputs` rows of w, `stride` apart, and `rows` rows of n values.
  void (*hc_dots)(const float* w, int64_t stride, int64_t outputs, const float* const* f, int64_t rows, int64_t n, double* const* out) = nullptr;
  double (*hc_mean_square)(const float* f, int64_t n) = nullptr;
  // x = RMSNorm(sum_i pre[i] * f[i * dim ..], norm)
  void (*hc_collapse)(const float* f, const double* pre, int64_t streams, int64_t dim, const uint16_t* norm, float eps, float* x) = nullptr;
  // Softmax over the rows of c [streams, streams], then `iterations` alternations of columns and rows.
  void (*hc_sinkhorn)(double* c, int64_t streams, int64_t iterations, double eps) = nullptr;

  // ---- measures of the machine (row_kernels.cc): a value that depends on all the work
  float (*read_stream)(const uint8_t* bytes, int64_t n) = nullptr;  // n a multiple of 128
  float (*fma_stream)(int64_t steps) = nullptr;                     // chains of `steps` fma each, as many as keep the units busy
  int64_t (*fma_stream_flops)(int64_t steps) = nullptr;

  // ---- cache rows (cache_kernels.cc)
  // RMSNorm, rotation, Hadamard (where set), cache rounding of one row of `dim`; out may be x.
  void (*finish_cache_row)(const float* x, const uint16_t* norm, int64_t dim, float eps, const float* cos_sin, int64_t rope, bool hadamard,
                           CacheRounding rounding, float* out) = nullptr;
  void (*write_cache_row)(const PagedRows& rows, int64_t block, int64_t offset, const float* values) = nullptr;
  // The row as key `key`, padding included.
  void (*read_key)(const PagedRows& rows, int64_t block, int64_t offset, const DecodedKeys& to, int64_t key) = nullptr;
  // Feeds n channels of one token to running softmax accumulators (three planes `plane` floats apart), and reads the result.
  void (*compressor_feed)(float* state, int64_t plane, const float* kv, const float* gate, const float* ape, int64_t n) = nullptr;
  void (*compressor_result)(const float* state, int64_t plane, int64_t n, float* out) = nullptr;

  // ---- attention (attention_kernels.cc); q and o are [heads][padded dim]
  // Keys to decode before they are scored: at 512 values they and a row's queries share L1 (32 KiB with AVX2, 48 with AVX-512).
  int32_t piece_keys = 8;
  // scores[h * kChunkKeys + k] = q_h . key k for keys [first, last); others are left alone.
  void (*chunk_scores)(const float* q, int64_t heads, int64_t dim, const DecodedKeys& keys, int64_t first, int64_t last, float* scores) = nullptr;
  // One step of the online softmax: scores (of chunk_scores) become probabilities relative to the new top, top and sum are updated, and
  // keep[h] is the factor of what was there before.
  void (*chunk_softmax)(float* scores, int64_t heads, float scale, int64_t first, int64_t last, float* top, float* sum, float* keep) = nullptr;
  // o[h][d] = o[h][d] keep[h] + sum over keys of p[h][key] key[d], for d in [d_begin, d_end), multiples of kSliceDim.
  void (*chunk_values)(const float* p, const float* keep, int64_t heads, int64_t dim, const DecodedKeys& keys, int64_t first, int64_t last, int64_t d_begin,
                       int64_t d_end, float* o) = nullptr;
  // o / sum, then the inverse rotation of the last `rope` values, for one head; writes dim values.
  void (*attention_finish)(const float* o, float sum, int64_t dim, const float* cos_sin, int64_t rope, float* out) = nullptr;

  // ---- the indexer's scores in integers (index_kernels.cc, index_scores.h)
  // Eight rows, by the addresses of their data and scales.
  void (*read_index_keys)(const uint8_t* const* data, const uint8_t* const* scales, int64_t dim, const IndexKeys& to) = nullptr;
  // scores[h * kChunkKeys + lane] = q_h . key
  void (*index_scores)(const IndexKeys& keys, const IndexQuery& query, int64_t heads, int64_t dim, float* scores) = nullptr;
  // total[k] = sum_h weight[h] * max(scores[h][k], 0), h ascending, for the keys of a chunk [first, last); NaN counts as -inf.
  void (*indexer_total)(const float* scores, const float* weight, int64_t heads, int64_t first, int64_t last, float* total) = nullptr;
};

void add_product_kernels(CpuIsa isa, CpuKernels& kernels);
void add_row_kernels(CpuIsa isa, CpuKernels& kernels);
void add_cache_kernels(CpuIsa isa, CpuKernels& kernels);
void add_attention_kernels(CpuIsa isa, CpuKernels& kernels);
void add_hc_kernels(CpuIsa isa, CpuKernels& kernels);
void add_index_kernels(CpuIsa isa, CpuKernels& kernels);

// Every kernel of one set. The table of a set that this machine lacks may be built, not called.
CpuKernels cpu_kernels(CpuIsa isa);

}  // namespace dsv4
