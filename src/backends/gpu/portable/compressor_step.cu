// compressor_step. Decode (about one token per sequence): one block per sequence feeds its tokens in order, state in global memory. Prefill (many
// tokens per sequence): windows are independent once their start is known, so one block per completed window recomputes its accumulators (from the
// state where the window began before this step), and a second launch leaves the state behind. Both feed the same values in the same order.
// Bound by latency in decode, by reading kv and gate once (ratio 4: twice) in prefill.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/paged.h"
#include "backends/gpu/portable/row_ops.h"
#include "ops/compressor_step.h"

namespace dsv4::gpu {
namespace {

struct StepArgs {
  Rows<const float> kv, gate;
  const float* ape;
  const uint16_t* norm;
  float eps;
  int ratio;
  int dim;
  int width;
  Rows<const float> cos_sin;
  int rope;
  bool hadamard;
  SequenceRows rows;
  float* state;
  int64_t state_floats;
  RowRounding rounding;
  PagedRows out;
  BlockTable table;
};

// A running softmax of one channel.
struct Running {
  float max, sum, weighted;
};
__device__ Running fresh() { return {-__int_as_float(0x7f800000), 0.0f, 0.0f}; }
__device__ void feed(Running& r, float kv, float gate) {
  const float top = fmaxf(r.max, gate);
  const float keep = expf(r.max - top), add = expf(gate - top);
  r.max = top;
  r.sum = r.sum * keep + add;
  r.weighted = r.weighted * keep + add * kv;
}
__device__ Running load(const float* planes, int dim, int d) { return {planes[d], planes[dim + d], planes[2 * dim + d]}; }
__device__ void store(float* planes, int dim, int d, const Running& r) {
  planes[d] = r.max;
  planes[dim + d] = r.sum;
  planes[2 * dim + d] = r.weighted;
}

// Feeds channel d of token t at position p; column offset 0 = the first halves (ratio 4), dim = the second.
__device__ void feed_token(const StepArgs& a, Running& r, int64_t t, int32_t p, int offset, int d) {
  feed(r, a.kv.row(t)[offset + d], a.gate.row(t)[offset + d] + a.ape[static_cast<int64_t>(p % a.ratio) * a.width + offset + d]);
}

// Norm, rotation, transform, rounding and write of the finished row in shared memory. All threads call after a barrier.
__device__ void finish_row(const StepArgs& a, float* row, int64_t t, int32_t p, int64_t slot, float* scratch) {
  norm_row(row, a.norm, a.dim, a.eps, scratch);
  rotate_row(row + a.dim - a.rope, a.cos_sin.row(t), a.rope);
  if (a.hadamard) hadamard_row(row, a.dim);
  round_row(row, a.dim, a.dim - a.rope, a.rounding);
  write_row(a.out.format, row_place(a.out, a.table, slot, p / a.ratio), row, a.dim);
  __syncthreads();
}

__global__ void feed_in_order(StepArgs a) {
  extern __shared__ float row[];
  __shared__ float scratch[kGroupLanes];
  wait_previous();
  allow_next();
  const int64_t s = blockIdx.x, slot = a.rows.seq_slots[s];
  const bool overlap = a.ratio == 4;
  float* current = a.state + slot * a.state_floats;
  float* next = current + 3 * a.dim;
  for (int64_t t = a.rows.cu_rows[s]; t < a.rows.cu_rows[s + 1]; ++t) {
    const int32_t p = a.rows.positions[t];
    if (p < 0) continue;
    const bool completes = (p + 1) % a.ratio == 0;
    for (int d = static_cast<int>(threadIdx.x); d < a.dim; d += static_cast<int>(blockDim.x)) {
      Running c = p == 0 || (!overlap && p % a.ratio == 0) ? fresh() : load(current, a.dim, d);
      if (overlap) {
        Running n = p == 0 ? fresh() : load(next, a.dim, d);
        feed_token(a, n, t, p, 0, d);
        feed_token(a, c, t, p, a.dim, d);
        store(current, a.dim, d, completes ? n : c);
        store(next, a.dim, d, completes ? fresh() : n);
      } else {
        feed_token(a, c, t, p, 0, d);
        store(current, a.dim, d, c);
      }
      if (completes) row[d] = c.weighted / c.sum;
    }
    if (!completes) continue;
    __syncthreads();
    finish_row(a, row, t, p, slot, scratch);
  }
}

// Accumulator of window `window` (its first-half part too, ratio 4) after the tokens up to row t at position p, when the step's rows of this sequence
// start at position p0 in row t0. Reads the state where the window's tokens began before p0.
__device__ Running current_after(const StepArgs& a, const float* state, int64_t window, int64_t t0, int32_t p0, int32_t p, int d) {
  const int32_t begin = static_cast<int32_t>(window) * a.ratio;
  if (a.ratio != 4) {
    Running r = p0 > begin ? load(state, a.dim, d) : fresh();
    for (int32_t q = p0 > begin ? p0 : begin; q <= p; ++q) feed_token(a, r, t0 + q - p0, q, 0, d);
    return r;
  }
  Running r = fresh();
  const int32_t before = begin - a.ratio;
  if (p0 > 0 && p0 >= begin) {
    r = load(state, a.dim, d);
  } else if (p0 > 0 && p0 > before) {
    r = load(state + 3 * a.dim, a.dim, d);
  }
  for (int32_t q = p0 > before ? p0 : before; q < begin; ++q) {
    if (q >= 0) feed_token(a, r, t0 + q - p0, q, 0, d);
  }
  for (int32_t q = p0 > begin ? p0 : begin; q <= p; ++q) feed_token(a, r, t0 + q - p0, q, a.dim, d);
  return r;
}

// First row of t's sequence in this step.
__device__ int64_t first_row(const SequenceRows& rows, int64_t t) {
  int64_t low = 0, high = rows.num_seqs;  // cu_rows[low] <= t < cu_rows[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (rows.cu_rows[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return rows.cu_rows[low];
}

__global__ void complete_windows(StepArgs a) {
  extern __shared__ float row[];
  __shared__ float scratch[kGroupLanes];
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.x;
  const int32_t p = a.rows.positions[t];
  if (p < 0 || (p + 1) % a.ratio != 0) return;
  const int64_t t0 = first_row(a.rows, t), slot = a.rows.slots[t];
  const int32_t p0 = p - static_cast<int32_t>(t - t0);
  for (int d = static_cast<int>(threadIdx.x); d < a.dim; d += static_cast<int>(blockDim.x)) {
    const Running r = current_after(a, a.state + slot * a.state_floats, p / a.ratio, t0, p0, p, d);
    row[d] = r.weighted / r.sum;
  }
  __syncthreads();
  finish_row(a, row, t, p, slot, scratch);
}

__global__ void leave_state(StepArgs a) {
  wait_previous();
  allow_next();
  const int64_t s = blockIdx.x, slot = a.rows.seq_slots[s];
  const int64_t t0 = a.rows.cu_rows[s];
  int64_t last = a.rows.cu_rows[s + 1] - 1;
  while (last >= t0 && a.rows.positions[last] < 0) --last;
  if (last < t0) return;
  const int32_t p = a.rows.positions[last], p0 = p - static_cast<int32_t>(last - t0);
  const int64_t window = (p + 1) / a.ratio;
  float* state = a.state + slot * a.state_floats;
  for (int d = static_cast<int>(threadIdx.x); d < a.dim; d += static_cast<int>(blockDim.x)) {
    if (a.ratio != 4) {
      // At a window's end the state is what the window left: the next token starts afresh.
      store(state, a.dim, d, current_after(a, state, p / a.ratio, t0, p0, p, d));
      continue;
    }
    const int32_t begin = static_cast<int32_t>(window) * a.ratio;
    const Running current = current_after(a, state, window, t0, p0, p, d);
    Running next = p0 > 0 && p0 > begin ? load(state + 3 * a.dim, a.dim, d) : fresh();
    for (int32_t q = p0 > begin ? p0 : begin; q <= p; ++q) feed_token(a, next, t0 + q - p0, q, 0, d);
    store(state, a.dim, d, current);
    store(state + 3 * a.dim, a.dim, d, next);
  }
}

}  // namespace

Status compressor_step_portable(OpContext& context, const CompressorStepArgs& a) {
  if (a.kv.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const RowRounding rounding = a.rounding == CacheRounding::kNone ? RowRounding::kNone : a.hadamard ? RowRounding::kE2M1 : RowRounding::kE4M3;
  const StepArgs args = {rows_of(a.kv),
                         rows_of(a.gate),
                         a.ape,
                         a.norm,
                         a.eps,
                         a.ratio,
                         static_cast<int>(a.head_dim),
                         static_cast<int>(a.kv.cols),
                         rows_of(a.cos_sin),
                         static_cast<int>(a.cos_sin.cols),
                         a.hadamard,
                         a.rows,
                         a.state,
                         compressor_state_floats(a.ratio, a.head_dim),
                         rounding,
                         a.out,
                         a.table};
  const int threads = static_cast<int>(ceil_div(a.head_dim < 512 ? a.head_dim : 512, 64) * 64), shared = 4 * args.dim;
  if (a.rows.num_rows <= 4 * a.rows.num_seqs) {
    return launch(gpu, "compressor_step", feed_in_order, {.blocks_x = a.rows.num_seqs, .threads = threads, .shared_bytes = shared}, args);
  }
  DSV4_RETURN_IF_ERROR(launch(gpu, "compressor_step", complete_windows, {.blocks_x = a.rows.num_rows, .threads = threads, .shared_bytes = shared}, args));
  return launch(gpu, "compressor_step", leave_state, {.blocks_x = a.rows.num_seqs, .threads = threads}, args);
}

}  // namespace dsv4::gpu
