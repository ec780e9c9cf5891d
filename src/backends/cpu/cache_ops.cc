// Operators that write cache rows: kv_insert and compressor_step.
#include <algorithm>
#include <limits>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"

namespace dsv4 {
namespace {

// Channels of the compressor per task: the tokens of a sequence pass one after another, the channels are independent. Long pieces of a row are
// streams that the hardware fetches ahead; short ones are tasks for many threads, of which half at least should have one.
constexpr int64_t kLongSlice = 256, kShortSlice = 64;
int64_t slice_of(int64_t dim, int64_t sequences, int64_t threads) {
  const int64_t half_busy = 2 * dim * sequences / threads / kShortSlice * kShortSlice;
  return std::clamp(half_busy, kShortSlice, kLongSlice);
}
// Rough cost of one value of a cache row (norm, rotation, rounding, encoding), and of one compressor update, in elementary steps.
constexpr int64_t kRowValue = 6;
constexpr int64_t kFeedValue = 3;

}  // namespace

Status kv_insert_cpu(OpContext& context, const KvInsertArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t dim = a.kv.cols, bytes = CpuScratch::padded<float>(dim);
  if (!c.own.reset(c.pool->num_threads(), bytes)) return no_scratch("kv_insert", bytes);
  for_ranges(c, a.kv.rows, 4, dim * kRowValue, [&](int64_t begin, int64_t end, int thread) {
    float* row = c.own[thread].take<float>(dim);
    for (int64_t t = begin; t < end; ++t) {
      const int32_t p = a.rows.positions[t];
      if (p < 0) continue;
      c.kernels->finish_cache_row(a.kv.row(t), a.norm, dim, a.eps, a.cos_sin.row(t), a.cos_sin.cols, false, a.rounding, row);
      const int64_t r = p % a.ring_rows;
      const int64_t block = a.window_table.ids[a.rows.slots[t] * a.window_table.stride + r / a.window.block_rows];
      c.kernels->write_cache_row(a.window, block, r % a.window.block_rows, row);
    }
  });
  return ok_status();
}

Status compressor_step_cpu(OpContext& context, const CompressorStepArgs& a) {
  CpuContext& c = cpu_context(context);
  const CpuKernels& kernels = *c.kernels;
  const int64_t dim = a.head_dim, rows = a.kv.rows, state_floats = compressor_state_floats(a.ratio, dim);
  const bool overlap = a.ratio == 4;
  if (rows == 0) return ok_status();

  // Rows that complete a window, in order; their token and sequence.
  const int64_t bytes = 2 * CpuScratch::padded<int32_t>(rows) + CpuScratch::padded<float>(rows * dim);
  if (!c.scratch.reset(bytes)) return no_scratch("compressor_step", bytes);
  int32_t* done_before = c.scratch.take<int32_t>(rows);  // completed rows before row t
  int32_t* done_token = c.scratch.take<int32_t>(rows);
  float* done = c.scratch.take<float>(rows * dim);
  int64_t num_done = 0;
  for (int64_t t = 0; t < rows; ++t) {
    done_before[t] = static_cast<int32_t>(num_done);
    const int32_t p = a.rows.positions[t];
    if (p >= 0 && (p + 1) % a.ratio == 0) done_token[num_done++] = static_cast<int32_t>(t);
  }

  const int64_t slice = slice_of(dim, a.rows.num_seqs, c.pool->num_threads()), slices = (dim + slice - 1) / slice;
  const int64_t cost = rows / std::max<int64_t>(1, a.rows.num_seqs) * std::min(dim, slice) * kFeedValue * (overlap ? 2 : 1);
  for_ranges(c, a.rows.num_seqs * slices, 1, cost, [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t s = task / slices, d = task % slices * slice, n = std::min(slice, dim - d);
      float* current = a.state + a.rows.seq_slots[s] * state_floats + d;  // the row of the window in hand
      float* next = current + 3 * dim;                                    // ratio 4: the following row's first-half part
      const auto reset = [&](float* planes) {
        std::fill_n(planes, n, -std::numeric_limits<float>::infinity());
        std::fill_n(planes + dim, n, 0.0f);
        std::fill_n(planes + 2 * dim, n, 0.0f);
      };
      for (int64_t t = a.rows.cu_rows[s]; t < a.rows.cu_rows[s + 1]; ++t) {
        const int32_t p = a.rows.positions[t];
        if (p < 0) continue;
        if (p == 0 || (!overlap && p % a.ratio == 0)) reset(current);
        if (p == 0 && overlap) reset(next);
        const float* kv = a.kv.row(t) + d;
        const float* gate = a.gate.row(t) + d;
        const float* ape = a.ape + (p % a.ratio) * a.kv.cols + d;
        if (overlap) {
          kernels.compressor_feed(next, dim, kv, gate, ape, n);
          kernels.compressor_feed(current, dim, kv + dim, gate + dim, ape + dim, n);
        } else {
          kernels.compressor_feed(current, dim, kv, gate, ape, n);
        }
        if ((p + 1) % a.ratio != 0) continue;
        kernels.compressor_result(current, dim, n, done + done_before[t] * dim + d);
        if (!overlap) continue;
        for (int plane = 0; plane < 3; ++plane) std::copy_n(next + plane * dim, n, current + plane * dim);
        reset(next);
      }
    }
  });

  for_ranges(c, num_done, 1, dim * kRowValue, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = done_token[i], j = a.rows.positions[t] / a.ratio;
      float* row = done + i * dim;
      kernels.finish_cache_row(row, a.norm, dim, a.eps, a.cos_sin.row(t), a.cos_sin.cols, a.hadamard, a.rounding, row);
      kernels.write_cache_row(a.out, a.table.ids[a.rows.slots[t] * a.table.stride + j / a.out.block_rows], j % a.out.block_rows, row);
    }
  });
  return ok_status();
}

}  // namespace dsv4
