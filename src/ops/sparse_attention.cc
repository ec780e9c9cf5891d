#include "ops/sparse_attention.h"

#include <algorithm>
#include <vector>

#include "ops/host.h"

namespace dsv4 {

Status check(const SparseAttentionArgs& a) {
  const char* op = "sparse_attention";
  DSV4_RETURN_IF_ERROR(check_present(op, "sink", a.sink));
  DSV4_RETURN_IF_ERROR(check_present(op, "window_table", a.window_table.ids));
  DSV4_RETURN_IF_ERROR(check_paged_rows(op, a.window));
  if (a.heads < 1) return invalid_argument("sparse_attention: heads must be positive");
  DSV4_RETURN_IF_ERROR(check_shape(op, "q", a.q.rows, a.q.cols, a.rows.num_rows, a.heads * a.window.row_dim));
  DSV4_RETURN_IF_ERROR(check_shape(op, "o", a.o.rows, a.o.cols, a.q.rows, a.q.cols));
  if (a.window_tokens < 1 || a.ring_rows < a.window_tokens || a.ring_rows > a.window_table.stride * a.window.block_rows) {
    return invalid_argument("sparse_attention: a ring of " + std::to_string(a.ring_rows) + " rows must hold a window of " + std::to_string(a.window_tokens) +
                            " and fit the slot's " + std::to_string(a.window_table.stride * a.window.block_rows));
  }
  if (a.ratio != 0 && a.ratio != 4 && a.ratio != 128)
    return invalid_argument("sparse_attention: ratio is " + std::to_string(a.ratio) + ", 0, 4 or 128 is supported");
  if (a.ratio != 0) {
    DSV4_RETURN_IF_ERROR(check_paged_rows(op, a.compressed));
    DSV4_RETURN_IF_ERROR(check_present(op, "compressed_table", a.compressed_table.ids));
    DSV4_RETURN_IF_ERROR(check_size(op, "compressed rows", a.compressed.row_dim, a.window.row_dim));
  }
  if (a.ratio == 4) DSV4_RETURN_IF_ERROR(check_shape(op, "topk", a.topk.rows, a.topk.cols, a.q.rows, a.topk.cols));
  return check_shape(op, "cos_sin", a.cos_sin.rows, a.cos_sin.cols, a.q.rows, a.cos_sin.cols);
}

OpCost cost(const SparseAttentionArgs& a) {
  const int64_t row = block_bytes(a.window.format, a.window.block_rows, a.window.row_dim) / a.window.block_rows;
  int64_t keys = a.window_tokens;
  if (a.ratio == 128) keys += a.max_compressed_rows;
  if (a.ratio == 4) keys += std::min(a.topk.cols, a.max_compressed_rows);
  return {a.q.rows * (8 * a.q.cols + keys * row), 4 * a.q.rows * a.q.cols * keys};
}

Status sparse_attention_reference(OpContext& context, const SparseAttentionArgs& a) {
  const int64_t dim = a.window.row_dim, rope = a.cos_sin.cols;
  reference::for_each_row(context, a.q.rows, [&](int64_t t) {
    float* o = a.o.row(t);
    std::fill(o, o + a.o.cols, 0.0f);
    const int64_t p = a.rows.positions[t], slot = a.rows.slots[t];
    if (p < 0) return;

    std::vector<std::vector<float>> keys;
    const auto take = [&](const PagedRows& rows, const BlockTable& table, int64_t r) {
      keys.emplace_back(static_cast<size_t>(dim));
      read_row(rows, table.ids[slot * table.stride + r / rows.block_rows], r % rows.block_rows, keys.back().data());
    };
    for (int64_t k = std::max<int64_t>(0, p - a.window_tokens + 1); k <= p; ++k) take(a.window, a.window_table, k % a.ring_rows);
    if (a.ratio == 128) {
      for (int64_t j = 0; j < (p + 1) / 128; ++j) take(a.compressed, a.compressed_table, j);
    }
    if (a.ratio == 4) {
      for (int64_t i = 0; i < a.topk.cols && a.topk.row(t)[i] >= 0; ++i) take(a.compressed, a.compressed_table, a.topk.row(t)[i]);
    }

    std::vector<double> prob(keys.size()), out(static_cast<size_t>(dim));
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* q = a.q.row(t) + h * dim;
      double top = a.sink[h];
      for (size_t k = 0; k < keys.size(); ++k) {
        prob[k] = static_cast<double>(a.scale) * reference::dot(q, keys[k].data(), dim);
        top = std::max(top, prob[k]);
      }
      double sum = std::exp(a.sink[h] - top);
      for (double& v : prob) sum += v = std::exp(v - top);
      std::fill(out.begin(), out.end(), 0.0);
      for (size_t k = 0; k < keys.size(); ++k) {
        for (size_t d = 0; d < out.size(); ++d) out[d] += prob[k] * static_cast<double>(keys[k][d]);
      }
      float* oh = o + h * dim;
      for (size_t d = 0; d < out.size(); ++d) oh[d] = static_cast<float>(out[d] / sum);
      reference::rotate_pairs(oh + dim - rope, a.cos_sin.row(t), rope, -1.0f);
    }
  });
  return ok_status();
}

}  // namespace dsv4
