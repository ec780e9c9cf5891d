// kv_insert: one block per row; the row lives in shared memory from the norm to its encoded form.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/paged.h"
#include "backends/gpu/portable/row_ops.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;

struct InsertArgs {
  Rows<const float> kv;
  int dim;
  const uint16_t* norm;
  float eps;
  Rows<const float> cos_sin;
  int rope;
  SequenceRows rows;
  RowRounding rounding;
  PagedRows window;
  BlockTable table;
  int32_t ring_rows;
};

__global__ void kv_rows(InsertArgs a) {
  extern __shared__ float row[];
  __shared__ float scratch[kGroupLanes];
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.x;
  const int32_t p = a.rows.positions[t];
  if (p < 0) return;
  const RowPlace place = row_place(a.window, a.table, a.rows.slots[t], p % a.ring_rows);  // early: two loads, one behind the other
  for (int i = static_cast<int>(threadIdx.x); i < a.dim; i += kThreads) row[i] = a.kv.row(t)[i];
  __syncthreads();
  norm_row(row, a.norm, a.dim, a.eps, scratch);
  rotate_row(row + a.dim - a.rope, a.cos_sin.row(t), a.rope);
  round_row(row, a.dim, a.dim - a.rope, a.rounding);
  write_row(a.window.format, place, row, a.dim);
}

}  // namespace

Status kv_insert_portable(OpContext& context, const KvInsertArgs& a) {
  const InsertArgs args = {rows_of(a.kv), static_cast<int>(a.kv.cols), a.norm, a.eps, rows_of(a.cos_sin), static_cast<int>(a.cos_sin.cols), a.rows,
                           a.rounding == CacheRounding::kE4M3 ? RowRounding::kE4M3 : RowRounding::kNone, a.window, a.window_table, a.ring_rows};
  return launch(gpu_context(context), "kv_insert", kv_rows, {.blocks_x = a.kv.rows, .threads = kThreads, .shared_bytes = static_cast<int>(4 * a.kv.cols)}, args);
}

}  // namespace dsv4::gpu
