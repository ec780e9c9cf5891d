// hc_pre, hc_post, hc_head. The mixes (fn f) are a product with an F32 weight of m * (m + 2) rows; what follows is small: sigmoids and
// Sinkhorn steps of an m x m matrix per row, in plain scalar code that is the same for every instruction set. One row is bound by reading
// fn (1.5 MiB at 4 x 4096), many rows by the fma units.
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/product.h"
#include "tensor/dtype.h"

namespace dsv4 {
namespace {

constexpr int64_t kMaxStreams = 8;
constexpr int64_t kSlice = 1024;  // values of d per task where one row is cut

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The scalars of a row and its collapse with norm are computed in double and rounded once: the result is rounded to E4M3 next, where
// one float32 ulp decides (a tie of the random test model lies one ulp away). Beside the product with fn this costs nothing.
double mean_square(const float* x, int64_t n) {
  double lanes[8] = {};  // n is a multiple of 8 in every model; the tail keeps the function total
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += static_cast<double>(x[i + l]) * x[i + l];
  }
  double sum = 0;
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  for (const double lane : lanes) sum += lane;
  return sum / static_cast<double>(n);
}

// x = RMSNorm(sum_i pre[i] * f[i * dim ..], norm). Two passes, so that nothing but x is written.
void collapse_and_norm(const float* f, const double* pre, int64_t streams, int64_t dim, const uint16_t* norm, float eps, float* x) {
  const auto mixed = [&](int64_t d) {
    double sum = 0;
    for (int64_t i = 0; i < streams; ++i) sum += pre[i] * f[i * dim + d];
    return sum;
  };
  double square = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double v = mixed(d);
    square += v * v;
  }
  const double scale = 1.0 / std::sqrt(square / static_cast<double>(dim) + static_cast<double>(eps));
  for (int64_t d = 0; d < dim; ++d) x[d] = static_cast<float>(static_cast<double>(bf16_to_float(norm[d])) * mixed(d) * scale);
}

// mixes[r][i] = fn[i] . f[rows[r]] (rows null: 0, 1, ..), into scratch memory.
Product mixes_product(CpuContext& c, const Matrix<const float>& fn, const Matrix<const float>& f, const int32_t* rows, int64_t num_rows, float* mixes,
                      float* packed) {
  Product p;
  p.weight = {WeightFormat::kF32, reinterpret_cast<const uint8_t*>(fn.data), nullptr, fn.rows, fn.cols};
  p.weight_row_bytes = fn.row_stride * static_cast<int64_t>(sizeof(float));
  p.rows = num_rows;
  p.y = mixes;
  p.y_stride = fn.rows;
  if (packed == nullptr) {
    p.x = PackedRows::in_place(f.data, f.row_stride);
    p.row_index = rows;
    return p;
  }
  p.x = PackedRows::blocked(packed, num_rows);
  for_ranges(c, num_rows, 1, fn.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      c.kernels->pack_row(f.row(rows == nullptr ? r : rows[r]), fn.cols, ActivationRounding::kNone, PackOrder::kNatural, p.x, r);
    }
  });
  return p;
}

int64_t packed_floats(const Matrix<const float>& fn, int64_t rows) { return fn.cols % 32 == 0 ? 0 : PackedRows::floats(rows, fn.cols); }

// Softmax over rows, then sinkhorn_iters alternations of columns and rows; sums ascending.
template <int64_t kFixed>
void sinkhorn(double* c, int64_t streams, int64_t iterations, double eps) {
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

}  // namespace

Status hc_pre_cpu(OpContext& context, const HcPreArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t m = a.streams, rows = a.h.rows, dim = a.x.cols;
  if (rows == 0) return ok_status();
  const int64_t packed = packed_floats(a.fn, rows);
  const int64_t bytes = CpuScratch::padded<float>(rows * a.fn.rows) + CpuScratch::padded<float>(packed);
  if (!c.scratch.reset(bytes)) return no_scratch("hc_pre", bytes);
  float* mixes = c.scratch.take<float>(rows * a.fn.rows);
  const Product product = mixes_product(c, a.fn, a.h, nullptr, rows, mixes, packed == 0 ? nullptr : c.scratch.take<float>(packed));
  run_products(c, &product, 1);

  for_ranges(c, rows, 1, a.h.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* f = a.h.row(t);
      const double inverse = 1.0 / std::sqrt(mean_square(f, a.h.cols) + static_cast<double>(a.rms_eps));
      const float* mix = mixes + t * a.fn.rows;
      const auto mixed = [&](int64_t i, int64_t kind) { return mix[i] * inverse * static_cast<double>(a.scale[kind]) + static_cast<double>(a.base[i]); };
      double pre[kMaxStreams], comb[kMaxStreams * kMaxStreams];
      for (int64_t i = 0; i < m; ++i) pre[i] = sigmoid(mixed(i, 0)) + static_cast<double>(a.hc_eps);
      for (int64_t i = 0; i < m; ++i) a.post.row(t)[i] = static_cast<float>(2.0 * sigmoid(mixed(m + i, 1)));
      for (int64_t i = 0; i < m * m; ++i) comb[i] = mixed(2 * m + i, 2);
      if (m == 4) {
        sinkhorn<4>(comb, m, a.sinkhorn_iters, static_cast<double>(a.hc_eps));
      } else {
        sinkhorn<0>(comb, m, a.sinkhorn_iters, static_cast<double>(a.hc_eps));
      }
      for (int64_t i = 0; i < m * m; ++i) a.comb.row(t)[i] = static_cast<float>(comb[i]);
      collapse_and_norm(f, pre, m, dim, a.norm, a.rms_eps, a.x.row(t));
    }
  });
  return ok_status();
}

Status hc_post_cpu(OpContext& context, const HcPostArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t m = a.post.cols, dim = a.y.cols, slices = (dim + kSlice - 1) / kSlice;
  for_ranges(c, a.y.rows * slices, 1, std::min(dim, kSlice) * m, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / slices, d = i % slices * kSlice;
      c.kernels->hc_expand(a.y.row(t) + d, a.post.row(t), a.comb.row(t), m, dim, std::min(kSlice, dim - d), a.h.row(t) + d);
    }
  });
  return ok_status();
}

Status hc_head_cpu(OpContext& context, const HcHeadArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t m = a.fn.rows, dim = a.x.cols;
  if (a.x.rows == 0) return ok_status();
  const int64_t packed = packed_floats(a.fn, a.x.rows);
  const int64_t bytes = 2 * CpuScratch::padded<int32_t>(a.x.rows) + CpuScratch::padded<float>(a.x.rows * m) + CpuScratch::padded<float>(packed);
  if (!c.scratch.reset(bytes)) return no_scratch("hc_head", bytes);
  int32_t* taken = c.scratch.take<int32_t>(a.x.rows);  // rows of h, without padding
  int32_t* place = c.scratch.take<int32_t>(a.x.rows);  // and the output rows they go to
  int64_t count = 0;
  for (int64_t r = 0; r < a.x.rows; ++r) {
    if (a.rows.data[r] < 0) {
      std::fill_n(a.x.row(r), dim, 0.0f);
    } else {
      taken[count] = a.rows.data[r];
      place[count++] = static_cast<int32_t>(r);
    }
  }
  if (count == 0) return ok_status();
  float* mixes = c.scratch.take<float>(a.x.rows * m);
  const Product product = mixes_product(c, a.fn, a.h, taken, count, mixes, packed == 0 ? nullptr : c.scratch.take<float>(packed));
  run_products(c, &product, 1);

  for_ranges(c, count, 1, a.h.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float* f = a.h.row(taken[i]);
      const double inverse = 1.0 / std::sqrt(mean_square(f, a.h.cols) + static_cast<double>(a.rms_eps));
      double pre[kMaxStreams];
      for (int64_t s = 0; s < m; ++s) {
        pre[s] = sigmoid(mixes[i * m + s] * inverse * static_cast<double>(a.scale[0]) + static_cast<double>(a.base[s])) + static_cast<double>(a.hc_eps);
      }
      collapse_and_norm(f, pre, m, dim, a.norm, a.rms_eps, a.x.row(place[i]));
    }
  });
  return ok_status();
}

}  // namespace dsv4
