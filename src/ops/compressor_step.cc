#include "ops/compressor_step.h"

#include <limits>
#include <vector>

#include "ops/host.h"
#include "ops/indexer_query.h"
#include "tensor/rounding.h"

namespace dsv4 {
namespace {

// One running softmax per channel: planes max, sum, weighted sum of `dim` floats each.
void reset(float* planes, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) {
    planes[d] = -std::numeric_limits<float>::infinity();
    planes[dim + d] = 0;
    planes[2 * dim + d] = 0;
  }
}

void feed(float* planes, int64_t dim, const float* kv, const float* gate, const float* ape) {
  for (int64_t d = 0; d < dim; ++d) {
    const float g = gate[d] + ape[d];
    const float old_max = planes[d], new_max = std::max(old_max, g);
    const float keep = std::exp(old_max - new_max), add = std::exp(g - new_max);
    planes[d] = new_max;
    planes[dim + d] = planes[dim + d] * keep + add;
    planes[2 * dim + d] = planes[2 * dim + d] * keep + add * kv[d];
  }
}

}  // namespace

Status check(const CompressorStepArgs& a) {
  const char* op = "compressor_step";
  if (a.ratio != 4 && a.ratio != 128) return invalid_argument("compressor_step: ratio is " + std::to_string(a.ratio) + ", 4 or 128 is supported");
  const int64_t width = a.ratio == 4 ? 2 * a.head_dim : a.head_dim;
  DSV4_RETURN_IF_ERROR(check_present(op, "ape", a.ape));
  DSV4_RETURN_IF_ERROR(check_present(op, "norm", a.norm));
  DSV4_RETURN_IF_ERROR(check_present(op, "state", a.state));
  DSV4_RETURN_IF_ERROR(check_present(op, "table", a.table.ids));
  DSV4_RETURN_IF_ERROR(check_paged_rows(op, a.out));
  DSV4_RETURN_IF_ERROR(check_size(op, "out rows", a.out.row_dim, a.head_dim));
  DSV4_RETURN_IF_ERROR(check_shape(op, "kv", a.kv.rows, a.kv.cols, a.rows.num_rows, width));
  DSV4_RETURN_IF_ERROR(check_shape(op, "gate", a.gate.rows, a.gate.cols, a.rows.num_rows, width));
  if (a.cos_sin.cols % 2 != 0 || a.cos_sin.cols > a.head_dim) {
    return invalid_argument("compressor_step: cannot rotate " + std::to_string(a.cos_sin.cols) + " of " + std::to_string(a.head_dim) + " values");
  }
  if (a.hadamard && (a.head_dim & (a.head_dim - 1)) != 0) {
    return invalid_argument("compressor_step: the Hadamard transform needs a power of two, head_dim is " + std::to_string(a.head_dim));
  }
  if (a.rounding == CacheRounding::kNone && a.out.format != RowFormat::kF32) {
    return invalid_argument(std::string("compressor_step: unrounded rows need an f32 cache, not ") + row_format_name(a.out.format));
  }
  return check_shape(op, "cos_sin", a.cos_sin.rows, a.cos_sin.cols, a.kv.rows, a.cos_sin.cols);
}

OpCost cost(const CompressorStepArgs& a) {
  const int64_t state = 2 * 4 * a.rows.num_seqs * compressor_state_floats(a.ratio, a.head_dim);
  const int64_t rows = a.kv.rows / a.ratio * (block_bytes(a.out.format, a.out.block_rows, a.out.row_dim) / a.out.block_rows);
  return {8 * a.kv.rows * a.kv.cols + 4 * a.ratio * a.kv.cols + state + rows, 8 * a.kv.rows * a.kv.cols};
}

Status compressor_step_reference(OpContext& context, const CompressorStepArgs& a) {
  const int64_t dim = a.head_dim, rope = a.cos_sin.cols, width = a.kv.cols;
  const bool overlap = a.ratio == 4;
  reference::for_each_row(context, a.rows.num_seqs, [&](int64_t s) {
    const int64_t slot = a.rows.seq_slots[s];
    float* current = a.state + slot * compressor_state_floats(a.ratio, dim);  // the row of the window in hand
    float* next = current + 3 * dim;                                          // ratio 4: the following row's first-half part
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t t = a.rows.cu_rows[s]; t < a.rows.cu_rows[s + 1]; ++t) {
      const int32_t p = a.rows.positions[t];
      if (p < 0) continue;
      if (p == 0 || (!overlap && p % a.ratio == 0)) reset(current, dim);
      if (p == 0 && overlap) reset(next, dim);
      const float* ape = a.ape + (p % a.ratio) * width;
      if (overlap) {
        feed(next, dim, a.kv.row(t), a.gate.row(t), ape);
        feed(current, dim, a.kv.row(t) + dim, a.gate.row(t) + dim, ape + dim);
      } else {
        feed(current, dim, a.kv.row(t), a.gate.row(t), ape);
      }
      if ((p + 1) % a.ratio != 0) continue;

      for (int64_t d = 0; d < dim; ++d) row[static_cast<size_t>(d)] = current[2 * dim + d] / current[dim + d];
      reference::rms_norm_row(row.data(), a.norm, dim, a.eps, row.data());
      reference::rotate_pairs(row.data() + dim - rope, a.cos_sin.row(t), rope, 1.0f);
      if (a.hadamard) hadamard_transform(row.data(), dim);
      if (a.rounding == CacheRounding::kE4M3) {
        if (a.hadamard) {
          round_e2m1(row.data(), dim, kIndexGroup, row.data());
        } else {
          round_e4m3(row.data(), dim - rope, kMlaScaleGroup, row.data());
        }
      }
      const int64_t j = p / a.ratio;
      write_row(a.out, a.table.ids[slot * a.table.stride + j / a.out.block_rows], j % a.out.block_rows, row.data());
      if (overlap) {
        std::copy(next, next + 3 * dim, current);
        reset(next, dim);
      }
    }
  });
  return ok_status();
}

}  // namespace dsv4
