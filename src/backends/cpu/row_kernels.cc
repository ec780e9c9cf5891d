// Kernels over one row: embedding, norms, activations, the hyper-connection's mixes, queries, argmax, packing. All are bound by L1 or L2.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/row_kernels.cc"
#include "hwy/foreach_target.h"

#include "backends/cpu/kernels.h"
#include "backends/cpu/pack-inl.h"
#include "backends/cpu/rows-inl.h"
#include "backends/cpu/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

void pack_row_kernel(const float* x, int64_t k, ActivationRounding rounding, PackOrder order, const PackedRows& to, int64_t row) {
  pack_row(x, k, rounding, order, to, row);
}

// swiglu of n values; the tail runs through a padded vector so that every value sees the same operations.
HWY_INLINE void swiglu_values(const float* gate, const float* up, int64_t n, float limit, float* out) {
  const F8 bound = set8(limit);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(swiglu8(load8(gate + i), load8(up + i), bound), out + i);
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i) * sizeof(float);
    float g[8] = {}, u[8] = {};
    std::memcpy(g, gate + i, rest);
    std::memcpy(u, up + i, rest);
    store8(swiglu8(load8(g), load8(u), bound), g);
    std::memcpy(out + i, g, rest);
  }
}

void swiglu_row(const float* gate, const float* up, int64_t n, float limit, float* out) { swiglu_values(gate, up, n, limit, out); }

void pack_expert_activation(const float* gate, const float* up, int64_t k0, int64_t n, float limit, float weight, ActivationRounding rounding, PackOrder order,
                            const PackedRows& to, int64_t row) {
  for (int64_t i = 0; i < n; i += kActivationGroup) {
    const int64_t count = n - i < kActivationGroup ? n - i : kActivationGroup;
    float values[kActivationGroup];
    swiglu_values(gate + i, up + i, count, limit, values);
    for (int64_t j = 0; j < count; ++j) values[j] *= weight;
    round_activations(values, count, rounding, values);
    pack_values(values, k0 + i, count, order, to, row);
  }
}

void embed_row(const uint16_t* table_row, int64_t dim, int64_t streams, float* out) {
  int64_t d = 0;
  for (; d + 8 <= dim; d += 8) {
    const F8 v = load8_bf16(table_row + d);
    for (int64_t s = 0; s < streams; ++s) store8(v, out + s * dim + d);
  }
  for (; d < dim; ++d) {
    for (int64_t s = 0; s < streams; ++s) out[s * dim + d] = bf16_to_float(table_row[d]);
  }
}

void rms_norm_row(const float* x, const uint16_t* weight, int64_t n, float eps, float* out) { normalize_row(x, weight, n, eps, out); }

void add_row(const float* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(add(load8(y + i), load8(x + i)), y + i);
  for (; i < n; ++i) y[i] += x[i];
}

// The largest value, then its first place (zeros of both signs are equal); a NaN anywhere gives -1.
int32_t argmax_row(const float* x, int64_t n) {
  float top = x[0];
  int64_t i = 0;
  if (n >= 8) {
    F8 largest = load8(x), checked = zero8();  // `checked` takes over the NaN lanes it meets
    for (; i + 8 <= n; i += 8) {
      const F8 v = load8(x + i);
      largest = max8(v, largest);
      checked = select8(eq8(v, v), checked, v);
    }
    if (!(reduce_add8(checked) == 0.0f)) return -1;
    top = reduce_max8(largest);
  }
  for (; i < n; ++i) {
    if (x[i] != x[i]) return -1;
    if (x[i] > top) top = x[i];
  }
  const F8 wanted = set8(top);
  i = 0;
  while (i + 8 <= n && !any8(eq8(load8(x + i), wanted))) i += 8;
  while (x[i] != top) ++i;
  return static_cast<int32_t>(i);
}

float read_stream(const uint8_t* bytes, int64_t n) {
  F8 a = zero8(), b = zero8(), c = zero8(), d = zero8();
  const auto at = [&](int64_t i) HWY_ATTR { return load8(reinterpret_cast<const float*>(bytes + i)); };
  for (int64_t i = 0; i + 128 <= n; i += 128) {
    a = max8(a, at(i));
    b = max8(b, at(i + 32));
    c = max8(c, at(i + 64));
    d = max8(d, at(i + 96));
  }
  return reduce_max8(max8(max8(a, b), max8(c, d)));
}

constexpr int kFmaChains = 12;

float fma_stream(int64_t steps) {
  FWide sums[kFmaChains];
  for (FWide& s : sums) s = set_wide(1.0f);
  const FWide x = set_wide(0.999f), y = set_wide(1e-3f);
  for (int64_t i = 0; i < steps; ++i) {
    for (FWide& s : sums) s = fma(s, x, y);
  }
  for (int i = 1; i < kFmaChains; ++i) sums[0] = fma(sums[i], x, sums[0]);
  return reduce_add8(part<0>(sums[0]));
}

int64_t fma_stream_flops(int64_t steps) { return steps * kFmaChains * kWide * 16; }

void query_norm_rope_head(float* q, int64_t dim, const float* cos_sin, int64_t rope, float eps) {
  const float inverse = inverse_root_mean_square(q, dim, eps);
  int64_t i = 0;
  for (; i + 8 <= dim; i += 8) store8(mul(load8(q + i), set8(inverse)), q + i);
  for (; i < dim; ++i) q[i] *= inverse;
  rotate_row<false>(q + dim - rope, cos_sin, rope);
}

void indexer_query_head(float* q, int64_t dim, const float* cos_sin, int64_t rope, bool round_e2m1) {
  rotate_row<false>(q + dim - rope, cos_sin, rope);
  hadamard_row(q, dim);
  if (!round_e2m1) return;
  for (int64_t i = 0; i < dim; i += kIndexGroup) round_e2m1_group(q + i, q + i);
}

// One vector of d at a time: all streams are read before any is written, so h needs no copy.
template <int M>
HWY_INLINE void expand_streams(const float* y, const float* post, const float* comb, int64_t stride, int64_t n, float* h) {
  int64_t d = 0;
  for (; d + 8 <= n; d += 8) {
    F8 old[M];
    for (int j = 0; j < M; ++j) old[j] = load8(h + j * stride + d);
    const F8 v = load8(y + d);
    for (int k = 0; k < M; ++k) {
      F8 sum = mul(set8(post[k]), v);
      for (int j = 0; j < M; ++j) sum = fma(set8(comb[j * M + k]), old[j], sum);
      store8(sum, h + k * stride + d);
    }
  }
  for (; d < n; ++d) {
    float old[M];
    for (int j = 0; j < M; ++j) old[j] = h[j * stride + d];
    for (int k = 0; k < M; ++k) {
      float sum = post[k] * y[d];
      for (int j = 0; j < M; ++j) sum = std::fma(comb[j * M + k], old[j], sum);
      h[k * stride + d] = sum;
    }
  }
}

void hc_expand(const float* y, const float* post, const float* comb, int64_t streams, int64_t stride, int64_t n, float* h) {
  switch (streams) {
    case 1: expand_streams<1>(y, post, comb, stride, n, h); break;
    case 2: expand_streams<2>(y, post, comb, stride, n, h); break;
    case 3: expand_streams<3>(y, post, comb, stride, n, h); break;
    case 4: expand_streams<4>(y, post, comb, stride, n, h); break;
    case 5: expand_streams<5>(y, post, comb, stride, n, h); break;
    case 6: expand_streams<6>(y, post, comb, stride, n, h); break;
    case 7: expand_streams<7>(y, post, comb, stride, n, h); break;
    case 8: expand_streams<8>(y, post, comb, stride, n, h); break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4 {

HWY_EXPORT(pack_row_kernel);
HWY_EXPORT(pack_expert_activation);
HWY_EXPORT(embed_row);
HWY_EXPORT(rms_norm_row);
HWY_EXPORT(swiglu_row);
HWY_EXPORT(add_row);
HWY_EXPORT(argmax_row);
HWY_EXPORT(read_stream);
HWY_EXPORT(fma_stream);
HWY_EXPORT(fma_stream_flops);
HWY_EXPORT(query_norm_rope_head);
HWY_EXPORT(indexer_query_head);
HWY_EXPORT(hc_expand);

void add_row_kernels(CpuIsa isa, CpuKernels& k) {
  k.pack_row = DSV4_CPU_KERNEL(pack_row_kernel, isa);
  k.pack_expert_activation = DSV4_CPU_KERNEL(pack_expert_activation, isa);
  k.embed_row = DSV4_CPU_KERNEL(embed_row, isa);
  k.rms_norm_row = DSV4_CPU_KERNEL(rms_norm_row, isa);
  k.swiglu_row = DSV4_CPU_KERNEL(swiglu_row, isa);
  k.add_row = DSV4_CPU_KERNEL(add_row, isa);
  k.read_stream = DSV4_CPU_KERNEL(read_stream, isa);
  k.fma_stream = DSV4_CPU_KERNEL(fma_stream, isa);
  k.fma_stream_flops = DSV4_CPU_KERNEL(fma_stream_flops, isa);
  k.argmax_row = DSV4_CPU_KERNEL(argmax_row, isa);
  k.query_norm_rope_head = DSV4_CPU_KERNEL(query_norm_rope_head, isa);
  k.indexer_query_head = DSV4_CPU_KERNEL(indexer_query_head, isa);
  k.hc_expand = DSV4_CPU_KERNEL(hc_expand, isa);
}

}  // namespace dsv4
#endif
