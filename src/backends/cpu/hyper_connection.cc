// hc_pre, hc_post, hc_head. The mixes (fn f) are a product with an F32 weight of m * (m + 2) rows; what follows is small: sigmoids and
// Sinkhorn steps of an m x m matrix per row, in plain scalar code that is the same for every instruction set. One row is bound by reading
// fn (1.5 MiB at 4 x 4096), many rows by the fma units.
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/product.h"

namespace dsv4 {
namespace {

constexpr int64_t kMaxStreams = 8;
constexpr int64_t kSlice = 1024;  // values of d per task where one row is cut

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

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
void sinkhorn(float* c, int64_t streams, int64_t iterations, float eps) {
  const int64_t m = kFixed > 0 ? kFixed : streams;
  for (int64_t r = 0; r < m; ++r) {
    float top = c[r * m], sum = 0;
    for (int64_t k = 1; k < m; ++k) top = std::max(top, c[r * m + k]);
    for (int64_t k = 0; k < m; ++k) sum += c[r * m + k] = std::exp(c[r * m + k] - top);
    for (int64_t k = 0; k < m; ++k) c[r * m + k] = c[r * m + k] / sum + eps;
  }
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    if (iteration > 0) {
      for (int64_t r = 0; r < m; ++r) {
        float sum = 0;
        for (int64_t k = 0; k < m; ++k) sum += c[r * m + k];
        for (int64_t k = 0; k < m; ++k) c[r * m + k] /= sum + eps;
      }
    }
    float sum[kMaxStreams] = {};
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
      const float inverse = 1.0f / std::sqrt(c.kernels->sum_of_squares(f, a.h.cols) / static_cast<float>(a.h.cols) + a.rms_eps);
      float* mix = mixes + t * a.fn.rows;
      for (int64_t i = 0; i < a.fn.rows; ++i) mix[i] *= inverse;
      float pre[kMaxStreams], comb[kMaxStreams * kMaxStreams];
      for (int64_t i = 0; i < m; ++i) pre[i] = sigmoid(mix[i] * a.scale[0] + a.base[i]) + a.hc_eps;
      for (int64_t i = 0; i < m; ++i) a.post.row(t)[i] = 2.0f * sigmoid(mix[m + i] * a.scale[1] + a.base[m + i]);
      for (int64_t i = 0; i < m * m; ++i) comb[i] = mix[2 * m + i] * a.scale[2] + a.base[2 * m + i];
      if (m == 4) {
        sinkhorn<4>(comb, m, a.sinkhorn_iters, a.hc_eps);
      } else {
        sinkhorn<0>(comb, m, a.sinkhorn_iters, a.hc_eps);
      }
      std::copy_n(comb, m * m, a.comb.row(t));
      c.kernels->hc_collapse(f, pre, m, dim, dim, a.x.row(t));
      c.kernels->rms_norm_row(a.x.row(t), a.norm, dim, a.rms_eps, a.x.row(t));
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
      const float inverse = 1.0f / std::sqrt(c.kernels->sum_of_squares(f, a.h.cols) / static_cast<float>(a.h.cols) + a.rms_eps);
      float pre[kMaxStreams];
      for (int64_t s = 0; s < m; ++s) pre[s] = sigmoid(mixes[i * m + s] * inverse * a.scale[0] + a.base[s]) + a.hc_eps;
      float* x = a.x.row(place[i]);
      c.kernels->hc_collapse(f, pre, m, dim, dim, x);
      c.kernels->rms_norm_row(x, a.norm, dim, a.rms_eps, x);
    }
  });
  return ok_status();
}

}  // namespace dsv4
