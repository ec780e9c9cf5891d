// kv_insert: one block per row; the row lives in shared memory from the norm to its encoded form, or (kv_rows_held, the served form: fp8_ds_mla with
// E4M3 rounding) in registers, two values a lane, so that a lane group holds one scale group and after the norm nobody waits for anybody.
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

static_assert(kMlaScaleGroup == 2 * kGroupLanes && kMlaNopeDim + kMlaRopeDim == 2 * kThreads && kMlaRopeDim == kMlaScaleGroup);

__global__ void __launch_bounds__(kThreads) kv_rows_held(InsertArgs a) {
  __shared__ float scratch[kGroupLanes];
  const int i = 2 * static_cast<int>(threadIdx.x), lane = group_lane(), group = group_index();
  const ushort2 weight = *reinterpret_cast<const ushort2*>(a.norm + i);
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.x;
  const int32_t p = a.rows.positions[t];
  const float2 x = *reinterpret_cast<const float2*>(a.kv.row(t) + i);
  if (p < 0) return;
  const RowPlace place = row_place(a.window, a.table, a.rows.slots[t], p % a.ring_rows);
  const bool rotated = group == kMlaNopeDim / kMlaScaleGroup;
  float2 cs = {1.0f, 0.0f};
  if (rotated) cs = *reinterpret_cast<const float2*>(a.cos_sin.row(t) + 2 * lane);
  const float root = sqrtf(block_sum(x.x * x.x + x.y * x.y, scratch) / static_cast<float>(2 * kThreads) + a.eps);
  const float v0 = decode_bf16(weight.x) * (x.x / root), v1 = decode_bf16(weight.y) * (x.y / root);
  if (rotated) {
    const float r0 = v0 * cs.x - v1 * cs.y, r1 = v0 * cs.y + v1 * cs.x;
    reinterpret_cast<ushort2*>(place.data + kMlaNopeDim)[lane] = {encode_bf16(r0), encode_bf16(r1)};
    if (lane == 0) place.scale[kMlaScaleBytes - 1] = 0;
    return;
  }
  // Rounded first, then encoded under the scale that the rounded values ask for, as the row kernel does.
  const float s = decode_e8m0(e4m3_scale_of(group_max(fmaxf(fabsf(v0), fabsf(v1)))));
  const float r0 = round_e4m3_by(v0, s), r1 = round_e4m3_by(v1, s);
  const uint8_t code = e4m3_scale_of(group_max(fmaxf(fabsf(r0), fabsf(r1))));
  const float stored = decode_e8m0(code);
  reinterpret_cast<uchar2*>(place.data + group * kMlaScaleGroup)[lane] = {encode_e4m3(r0 / stored), encode_e4m3(r1 / stored)};
  if (lane == 0) place.scale[group] = code;
}

}  // namespace

Status kv_insert_portable(OpContext& context, const KvInsertArgs& a) {
  const InsertArgs args = {rows_of(a.kv),
                           static_cast<int>(a.kv.cols),
                           a.norm,
                           a.eps,
                           rows_of(a.cos_sin),
                           static_cast<int>(a.cos_sin.cols),
                           a.rows,
                           a.rounding == CacheRounding::kE4M3 ? RowRounding::kE4M3 : RowRounding::kNone,
                           a.window,
                           a.window_table,
                           a.ring_rows};
  const auto aligned = [](const auto* p, int64_t stride_bytes, uintptr_t to) {
    return reinterpret_cast<uintptr_t>(p) % to == 0 && static_cast<uintptr_t>(stride_bytes) % to == 0;
  };
  const bool held = args.rounding == RowRounding::kE4M3 && a.window.format == RowFormat::kFp8DsMla && args.dim == 2 * kThreads && args.rope == kMlaRopeDim &&
                    aligned(a.kv.data, 4 * a.kv.row_stride, 8) && aligned(a.cos_sin.data, 4 * a.cos_sin.row_stride, 8) && aligned(a.norm, 0, 4) &&
                    aligned(a.window.base, a.window.block_stride_bytes, 4);
  if (held) return launch(gpu_context(context), "kv_insert (held)", kv_rows_held, {.blocks_x = a.kv.rows, .threads = kThreads}, args);
  return launch(gpu_context(context), "kv_insert", kv_rows, {.blocks_x = a.kv.rows, .threads = kThreads, .shared_bytes = static_cast<int>(4 * a.kv.cols)},
                args);
}

}  // namespace dsv4::gpu
