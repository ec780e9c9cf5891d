#include "ops/indexer_topk.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/host.h"

namespace dsv4 {

Status check(const IndexerTopkArgs& a) {
  const char* op = "indexer_topk";
  if (a.heads < 1 || a.ratio < 1 || a.indices.cols < 1) return invalid_argument("indexer_topk: heads, ratio and top-k must be positive");
  DSV4_RETURN_IF_ERROR(check_paged_rows(op, a.keys));
  DSV4_RETURN_IF_ERROR(check_present(op, "table", a.table.ids));
  DSV4_RETURN_IF_ERROR(check_shape(op, "q", a.q.rows, a.q.cols, a.rows.num_rows, a.heads * a.keys.row_dim));
  DSV4_RETURN_IF_ERROR(check_shape(op, "w", a.w.rows, a.w.cols, a.q.rows, a.heads));
  return check_shape(op, "indices", a.indices.rows, a.indices.cols, a.q.rows, a.indices.cols);
}

OpCost cost(const IndexerTopkArgs& a) {
  if (a.max_rows <= a.indices.cols) return {4 * a.q.rows * a.indices.cols, 0};  // all rows are chosen, none is scored
  const int64_t row = block_bytes(a.keys.format, a.keys.block_rows, a.keys.row_dim) / a.keys.block_rows;
  return {4 * a.q.rows * (a.q.cols + a.w.cols + a.indices.cols) + a.rows.num_seqs * a.max_rows * row, 2 * a.q.rows * a.max_rows * a.q.cols};
}

Status indexer_topk_reference(OpContext& context, const IndexerTopkArgs& a) {
  const int64_t dim = a.keys.row_dim, topk = a.indices.cols;
  reference::for_each_row(context, a.q.rows, [&](int64_t t) {
    int32_t* out = a.indices.row(t);
    std::fill(out, out + topk, -1);
    const int64_t count = a.rows.positions[t] < 0 ? 0 : (a.rows.positions[t] + 1) / a.ratio;
    std::vector<int32_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    if (count > topk) {
      std::vector<float> scores(static_cast<size_t>(count)), key(static_cast<size_t>(dim));
      for (int64_t j = 0; j < count; ++j) {
        read_row(a.keys, a.table.ids[a.rows.slots[t] * a.table.stride + j / a.keys.block_rows], j % a.keys.block_rows, key.data());
        float score = 0;
        for (int64_t h = 0; h < a.heads; ++h) {
          score += a.weight_scale * a.w.row(t)[h] * std::max(reference::dot(a.q.row(t) + h * dim, key.data(), dim), 0.0f);
        }
        scores[static_cast<size_t>(j)] = score == score ? score : -std::numeric_limits<float>::infinity();
      }
      std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) { return scores[static_cast<size_t>(x)] > scores[static_cast<size_t>(y)]; });
      order.resize(static_cast<size_t>(topk));
      std::sort(order.begin(), order.end());
    }
    std::copy(order.begin(), order.end(), out);
  });
  return ok_status();
}

}  // namespace dsv4
