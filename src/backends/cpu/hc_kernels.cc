// Kernels of the hyper-connection's input side, in double: the result is rounded to E4M3 next, where one float32 ulp decides (a tie of the
// random test model lies one ulp away). Eight double lanes, two registers of AVX2 and one of AVX-512. A product of two float32 is exact in double, so whether
// it is fused with the sum makes no difference; a dot product is eight partial sums, ascending, then lane 0 to 7 in order. Bound by the conversions from
// float32, which as many rows and outputs share as there are registers for their sums.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/hc_kernels.cc"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/kernels.h"
#include "backends/cpu/lanes-inl.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4 {
namespace HWY_NAMESPACE {

#if DSV4_CPU_PORTABLE_LANES

constexpr int kDotRows = 2;
struct W8 {
  double v[8];
};
HWY_INLINE W8 zero_w8() { return W8{}; }
HWY_INLINE W8 set_w8(double x) {
  W8 r;
  for (double& v : r.v) v = x;
  return r;
}
HWY_INLINE W8 load_w8(const float* p) {
  W8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = static_cast<double>(p[i]);
  return r;
}
HWY_INLINE W8 load_w8_bf16(const uint16_t* p) {
  W8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = static_cast<double>(bf16_to_float(p[i]));
  return r;
}
HWY_INLINE W8 add(W8 a, W8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] += b.v[i];
  return a;
}
HWY_INLINE W8 mul(W8 a, W8 b) {
  for (int i = 0; i < 8; ++i) a.v[i] *= b.v[i];
  return a;
}
HWY_INLINE W8 add_exact_product(W8 a, W8 b, W8 sum) { return add(mul(a, b), sum); }
HWY_INLINE void lanes_w8(W8 a, double* out) { std::copy_n(a.v, 8, out); }
HWY_INLINE void store_w8_as_float(W8 a, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(a.v[i]);
}

#elif DSV4_CPU_AVX512

constexpr int kDotRows = 4;
using D8Wide = hn::CappedTag<double, 8>;
struct W8 {
  hn::Vec<D8Wide> v;
};
HWY_INLINE W8 zero_w8() { return {hn::Zero(D8Wide())}; }
HWY_INLINE W8 set_w8(double x) { return {hn::Set(D8Wide(), x)}; }
HWY_INLINE W8 load_w8(const float* p) { return {hn::PromoteTo(D8Wide(), load8(p))}; }
HWY_INLINE W8 load_w8_bf16(const uint16_t* p) { return {hn::PromoteTo(D8Wide(), load8_bf16(p))}; }
HWY_INLINE W8 add(W8 a, W8 b) { return {hn::Add(a.v, b.v)}; }
HWY_INLINE W8 mul(W8 a, W8 b) { return {hn::Mul(a.v, b.v)}; }
HWY_INLINE W8 add_exact_product(W8 a, W8 b, W8 sum) { return {hn::MulAdd(a.v, b.v, sum.v)}; }
HWY_INLINE void lanes_w8(W8 a, double* out) { hn::StoreU(a.v, D8Wide(), out); }
HWY_INLINE void store_w8_as_float(W8 a, float* out) { store8(hn::DemoteTo(D8(), a.v), out); }

#else

constexpr int kDotRows = 2;  // of three outputs or rows the sums no longer fit
using D4 = hn::CappedTag<double, 4>;
using F4 = hn::CappedTag<float, 4>;
struct W8 {
  hn::Vec<D4> low, high;
};
HWY_INLINE W8 zero_w8() { return {hn::Zero(D4()), hn::Zero(D4())}; }
HWY_INLINE W8 set_w8(double x) { return {hn::Set(D4(), x), hn::Set(D4(), x)}; }
HWY_INLINE W8 load_w8(const float* p) { return {hn::PromoteTo(D4(), hn::LoadU(F4(), p)), hn::PromoteTo(D4(), hn::LoadU(F4(), p + 4))}; }
HWY_INLINE W8 load_w8_bf16(const uint16_t* p) {
  const F8 v = load8_bf16(p);
  return {hn::PromoteTo(D4(), hn::LowerHalf(F4(), v)), hn::PromoteTo(D4(), hn::UpperHalf(F4(), v))};
}
HWY_INLINE W8 add(W8 a, W8 b) { return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)}; }
HWY_INLINE W8 mul(W8 a, W8 b) { return {hn::Mul(a.low, b.low), hn::Mul(a.high, b.high)}; }
HWY_INLINE W8 add_exact_product(W8 a, W8 b, W8 sum) { return {hn::MulAdd(a.low, b.low, sum.low), hn::MulAdd(a.high, b.high, sum.high)}; }
HWY_INLINE void lanes_w8(W8 a, double* out) {
  hn::StoreU(a.low, D4(), out);
  hn::StoreU(a.high, D4(), out + 4);
}
HWY_INLINE void store_w8_as_float(W8 a, float* out) {
  hn::StoreU(hn::DemoteTo(F4(), a.low), F4(), out);
  hn::StoreU(hn::DemoteTo(F4(), a.high), F4(), out + 4);
}

#endif

// What is left of n after steps of eight comes first, then the lanes.
HWY_INLINE double sum_lanes(W8 sum, double rest) {
  double lanes[8];
  lanes_w8(sum, lanes);
  for (const double lane : lanes) rest += lane;
  return rest;
}

// R rows against O outputs.
template <int R, int O>
HWY_INLINE void dot_block(const float* w, int64_t stride, const float* const* f, int64_t n, double* const* out) {
  W8 sum[R][O];
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) sum[r][o] = zero_w8();
  }
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    W8 x[R];
    for (int r = 0; r < R; ++r) x[r] = load_w8(f[r] + i);
    for (int o = 0; o < O; ++o) {
      const W8 weight = load_w8(w + o * stride + i);
      for (int r = 0; r < R; ++r) sum[r][o] = add_exact_product(weight, x[r], sum[r][o]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) {
      double rest = 0;
      for (int64_t j = i; j < n; ++j) rest += static_cast<double>(w[o * stride + j]) * static_cast<double>(f[r][j]);
      out[r][o] = sum_lanes(sum[r][o], rest);
    }
  }
}

template <int R>
void dot_rows(const float* w, int64_t stride, int64_t outputs, const float* const* f, int64_t n, double* const* out) {
  int64_t o = 0;
  double* to[R];
  const auto block = [&]<int O>() HWY_ATTR {
    for (int r = 0; r < R; ++r) to[r] = out[r] + o;
    dot_block<R, O>(w + o * stride, stride, f, n, to);
    o += O;
  };
  constexpr int kOutputs = R == 1 ? 2 * kDotRows : kDotRows;
  while (o + kOutputs <= outputs) block.template operator()<kOutputs>();
  while (o < outputs) block.template operator()<1>();
}

void hc_dots(const float* w, int64_t stride, int64_t outputs, const float* const* f, int64_t rows, int64_t n, double* const* out) {
  int64_t r = 0;
  for (; r + kDotRows <= rows; r += kDotRows) dot_rows<kDotRows>(w, stride, outputs, f + r, n, out + r);
  for (; r < rows; ++r) dot_rows<1>(w, stride, outputs, f + r, n, out + r);
}

double hc_mean_square(const float* f, int64_t n) {
  double sum = 0;
  double* out = &sum;
  dot_block<1, 1>(f, 0, &f, n, &out);
  return sum / static_cast<double>(n);
}

void hc_collapse(const float* f, const double* pre, int64_t streams, int64_t dim, const uint16_t* norm, float eps, float* x) {
  // Twice, so that nothing but x is written.
  const auto mixed = [&](int64_t d) HWY_ATTR {
    W8 sum = mul(set_w8(pre[0]), load_w8(f + d));
    for (int64_t i = 1; i < streams; ++i) sum = add(sum, mul(set_w8(pre[i]), load_w8(f + i * dim + d)));
    return sum;
  };
  const auto mixed_one = [&](int64_t d) {
    double sum = pre[0] * static_cast<double>(f[d]);
    for (int64_t i = 1; i < streams; ++i) sum += pre[i] * static_cast<double>(f[i * dim + d]);
    return sum;
  };
  W8 squares = zero_w8();
  int64_t d = 0;
  for (; d + 8 <= dim; d += 8) {
    const W8 v = mixed(d);
    squares = add(squares, mul(v, v));
  }
  double rest = 0;
  for (int64_t i = d; i < dim; ++i) rest += mixed_one(i) * mixed_one(i);
  const double scale = 1.0 / std::sqrt(sum_lanes(squares, rest) / static_cast<double>(dim) + static_cast<double>(eps));
  for (d = 0; d + 8 <= dim; d += 8) store_w8_as_float(mul(mul(load_w8_bf16(norm + d), mixed(d)), set_w8(scale)), x + d);
  for (; d < dim; ++d) x[d] = static_cast<float>(static_cast<double>(bf16_to_float(norm[d])) * mixed_one(d) * scale);
}

// Plain loops: with four streams, known when this is compiled, the compiler holds a row in one register. Sums ascending.
template <int64_t kFixed>
HWY_INLINE void sinkhorn_steps(double* c, int64_t streams, int64_t iterations, double eps) {
  const int64_t m = kFixed > 0 ? kFixed : streams;
  for (int64_t r = 0; r < m; ++r) {
    double top = c[r * m], sum = 0;
    for (int64_t k = 1; k < m; ++k) top = std::max(top, c[r * m + k]);
    for (int64_t k = 0; k < m; ++k) sum += c[r * m + k] = std::exp(c[r * m + k] - top);
    for (int64_t k = 0; k < m; ++k) c[r * m + k] = c[r * m + k] / sum + eps;
  }
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    if (iteration > 0) {
      for (int64_t r = 0; r < m; ++r) {
        double sum = 0;
        for (int64_t k = 0; k < m; ++k) sum += c[r * m + k];
        for (int64_t k = 0; k < m; ++k) c[r * m + k] /= sum + eps;
      }
    }
    double sum[kMaxStreams] = {};
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t k = 0; k < m; ++k) sum[k] += c[r * m + k];
    }
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t k = 0; k < m; ++k) c[r * m + k] /= sum[k] + eps;
    }
  }
}

void hc_sinkhorn(double* c, int64_t streams, int64_t iterations, double eps) {
  if (streams == 4) {
    sinkhorn_steps<4>(c, streams, iterations, eps);
  } else {
    sinkhorn_steps<0>(c, streams, iterations, eps);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv4
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4 {

HWY_EXPORT(hc_dots);
HWY_EXPORT(hc_mean_square);
HWY_EXPORT(hc_collapse);
HWY_EXPORT(hc_sinkhorn);

void add_hc_kernels(CpuIsa isa, CpuKernels& k) {
  k.hc_dots = DSV4_CPU_KERNEL(hc_dots, isa);
  k.hc_mean_square = DSV4_CPU_KERNEL(hc_mean_square, isa);
  k.hc_collapse = DSV4_CPU_KERNEL(hc_collapse, isa);
  k.hc_sinkhorn = DSV4_CPU_KERNEL(hc_sinkhorn, isa);
}

}  // namespace dsv4
#endif
