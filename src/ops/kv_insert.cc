#include "ops/kv_insert.h"

#include <vector>

#include "ops/host.h"
#include "tensor/rounding.h"

namespace dsv4 {

Status check(const KvInsertArgs& a) {
  const char* op = "kv_insert";
  DSV4_RETURN_IF_ERROR(check_present(op, "norm", a.norm));
  DSV4_RETURN_IF_ERROR(check_present(op, "window_table", a.window_table.ids));
  DSV4_RETURN_IF_ERROR(check_paged_rows(op, a.window));
  DSV4_RETURN_IF_ERROR(check_shape(op, "kv", a.kv.rows, a.kv.cols, a.rows.num_rows, a.window.row_dim));
  if (a.cos_sin.cols % 2 != 0 || a.cos_sin.cols > a.kv.cols) {
    return invalid_argument("kv_insert: cannot rotate " + std::to_string(a.cos_sin.cols) + " of " + std::to_string(a.kv.cols) + " values");
  }
  if (a.ring_rows < 1 || a.ring_rows > a.window_table.stride * a.window.block_rows) {
    return invalid_argument("kv_insert: a ring of " + std::to_string(a.ring_rows) + " rows does not fit the slot's " +
                            std::to_string(a.window_table.stride * a.window.block_rows));
  }
  if (a.rounding == CacheRounding::kNone && a.window.format != RowFormat::kF32) {
    return invalid_argument(std::string("kv_insert: unrounded rows need an f32 cache, not ") + row_format_name(a.window.format));
  }
  return check_shape(op, "cos_sin", a.cos_sin.rows, a.cos_sin.cols, a.kv.rows, a.cos_sin.cols);
}

OpCost cost(const KvInsertArgs& a) {
  const int64_t out = block_bytes(a.window.format, a.window.block_rows, a.window.row_dim) / a.window.block_rows;
  return {a.kv.rows * (4 * (a.kv.cols + a.cos_sin.cols + 2) + out) + 2 * a.kv.cols, 8 * a.kv.rows * a.kv.cols};
}

Status kv_insert_reference(OpContext& context, const KvInsertArgs& a) {
  const int64_t dim = a.kv.cols, rope = a.cos_sin.cols;
  reference::for_each_row(context, a.kv.rows, [&](int64_t t) {
    const int32_t p = a.rows.positions[t];
    if (p < 0) return;
    std::vector<float> row(static_cast<size_t>(dim));
    reference::rms_norm_row(a.kv.row(t), a.norm, dim, a.eps, row.data());
    reference::rotate_pairs(row.data() + dim - rope, a.cos_sin.row(t), rope, 1.0f);
    if (a.rounding == CacheRounding::kE4M3) round_e4m3(row.data(), dim - rope, kMlaScaleGroup, row.data());
    const int64_t r = p % a.ring_rows;
    const int64_t block = a.window_table.ids[a.rows.slots[t] * a.window_table.stride + r / a.window.block_rows];
    write_row(a.window, block, r % a.window.block_rows, row.data());
  });
  return ok_status();
}

}  // namespace dsv4
