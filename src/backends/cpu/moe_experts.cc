// Routed experts. Rows are grouped by expert, so each chosen expert's packed weights are read once per step:
//   1. x is rounded and packed once per row.
//   2. per expert and 128 values of F: w1 and w3 of its rows, SwiGLU times the routing weight, rounded, packed for w2.
//   3. per slice of D: w2 of all experts, then y[t] += its experts' parts in the order of the row's choice.
// A row's part from one expert is a product of that row alone (product_kernels.cc), so neither the batch nor the other rows of an expert
// change a bit, and one row takes the same path as many. Bound by reading the experts' packed bytes up to some rows per expert.
#include <algorithm>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/product.h"
#include "tensor/rounding.h"

namespace dsv4 {
namespace {

// Values of F per task of step 2: one activation group.
constexpr int64_t kSliceF = kActivationGroup;
// Values of D per task of step 3, a multiple of the three outputs that kernels take at a time: long enough that few choices read streams, short
// enough that the parts of all choices stay in L1 and each thread has four tasks.
int64_t slice_of(int64_t dim, int64_t choices, int64_t threads) {
  const int64_t longest = std::max(kTileOutputs, 8192 / std::max<int64_t>(choices, 1));
  const int64_t tasks = std::max(4 * threads, (dim + longest - 1) / longest);
  const int64_t even = (tasks + threads - 1) / threads * threads;
  return ((dim + even - 1) / even + 2) / 3 * 3;
}

// (row, choice) pairs sorted by expert; pairs of one expert are neighbours, rows ascending.
struct Grouping {
  int32_t* first = nullptr;   // [num_experts + 1] first pair of each expert
  int32_t* active = nullptr;  // experts with pairs
  int64_t num_active = 0;
  int32_t* row = nullptr;    // [pairs] row of x
  float* weight = nullptr;   // [pairs]
  int32_t* place = nullptr;  // [T * top_k] pair of (row, choice), -1 when skipped
  int64_t num_pairs = 0;
};

int64_t grouping_bytes(int64_t num_experts, int64_t choices) {
  return CpuScratch::padded<int32_t>(num_experts + 1) + CpuScratch::padded<int32_t>(num_experts) + 2 * CpuScratch::padded<int32_t>(choices) +
         CpuScratch::padded<float>(choices);
}

Grouping group_by_expert(const MoeExpertsArgs& a, CpuScratch& scratch) {
  const int64_t num_experts = a.table.num_experts, topk = a.experts.cols, choices = a.x.rows * topk;
  Grouping g;
  g.first = scratch.take<int32_t>(num_experts + 1);
  g.active = scratch.take<int32_t>(num_experts);
  g.row = scratch.take<int32_t>(choices);
  g.place = scratch.take<int32_t>(choices);
  g.weight = scratch.take<float>(choices);
  std::fill_n(g.first, num_experts + 1, 0);
  for (int64_t t = 0; t < a.x.rows; ++t) {
    for (int64_t k = 0; k < topk; ++k) {
      if (const int32_t e = a.experts.row(t)[k]; e >= 0) ++g.first[e + 1];
    }
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    if (g.first[e + 1] > 0) g.active[g.num_active++] = static_cast<int32_t>(e);
    g.first[e + 1] += g.first[e];
  }
  g.num_pairs = g.first[num_experts];
  // first[e] serves as the next free place of e, and is put back afterwards.
  for (int64_t t = 0; t < a.x.rows; ++t) {
    for (int64_t k = 0; k < topk; ++k) {
      const int32_t e = a.experts.row(t)[k];
      if (e < 0) {
        g.place[t * topk + k] = -1;
        continue;
      }
      const int32_t pair = g.first[e]++;
      g.place[t * topk + k] = pair;
      g.row[pair] = static_cast<int32_t>(t);
      g.weight[pair] = a.weights.row(t)[k];
    }
  }
  for (int64_t e = num_experts; e > 0; --e) g.first[e] = g.first[e - 1];
  g.first[0] = 0;
  return g;
}

}  // namespace

Status moe_experts_cpu(OpContext& context, const MoeExpertsArgs& a) {
  CpuContext& c = cpu_context(context);
  const CpuKernels& kernels = *c.kernels;
  const ExpertTable& table = a.table;
  const int64_t rows = a.x.rows, dim = table.hidden_dim, ffn = table.ffn_dim, topk = a.experts.cols, choices = rows * topk;
  const int threads = c.pool->num_threads();
  if (rows == 0) return ok_status();

  const int64_t slice = slice_of(dim, choices, threads), slices_d = (dim + slice - 1) / slice, part_bytes = CpuScratch::padded<float>(choices * slice);
  const int64_t bytes = grouping_bytes(table.num_experts, choices) + CpuScratch::padded<float>(PackedRows::floats(rows, dim)) +
                        CpuScratch::padded<float>(PackedRows::floats(choices, ffn));
  if (!c.scratch.reset(bytes) || !c.own.reset(threads, part_bytes)) return no_scratch("moe_experts", bytes + threads * part_bytes);
  const Grouping g = group_by_expert(a, c.scratch);
  if (g.num_pairs == 0) return ok_status();

  const PackOrder order = pack_order(table.format);
  const PackedRows x = PackedRows::blocked(c.scratch.take<float>(PackedRows::floats(rows, dim)), rows);
  for_ranges(c, rows, 1, dim, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) kernels.pack_row(a.x.row(t), dim, a.rounding, order, x, t);
  });

  const auto weight = [&](const uint8_t* const* data, const uint8_t* const* scale, int32_t e, int64_t n, int64_t k) {
    return WeightView{table.format, data[e], scale == nullptr ? nullptr : scale[e], n, k};
  };

  const PackedRows act = PackedRows::blocked(c.scratch.take<float>(PackedRows::floats(choices, ffn)), choices);
  const int64_t slices_f = (ffn + kSliceF - 1) / kSliceF;
  for_ranges(c, g.num_active * slices_f, 1, 2 * std::min(ffn, kSliceF) * dim, [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int32_t e = g.active[task / slices_f];
      const int64_t f = task % slices_f * kSliceF, f_end = std::min(f + kSliceF, ffn);
      float gate[kPanelRows * kSliceF], up[kPanelRows * kSliceF];
      for (int64_t first = g.first[e]; first < g.first[e + 1]; first += kPanelRows) {
        const int64_t count = std::min<int64_t>(kPanelRows, g.first[e + 1] - first);
        Product p{.weight = weight(table.w1, table.w1_scale, e, ffn, dim),
                  .x = x,
                  .row_index = g.row + first,
                  .rows = count,
                  .y = gate,
                  .y_stride = kSliceF,
                  .y_first = f};
        p.weight_row_bytes = p.weight.row_bytes();
        kernels.product(p, f, f_end, 0, count);
        p.weight = weight(table.w3, table.w3_scale, e, ffn, dim);
        p.y = up;
        kernels.product(p, f, f_end, 0, count);
        for (int64_t i = 0; i < count; ++i) {
          kernels.pack_expert_activation(gate + i * kSliceF, up + i * kSliceF, f, f_end - f, a.limit, g.weight[first + i], a.rounding, order, act, first + i);
        }
      }
    }
  });

  for_ranges(c, slices_d, 1, g.num_pairs * slice * ffn, [&](int64_t begin, int64_t end, int thread) {
    float* part = c.own[thread].take<float>(choices * slice);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t d = task * slice, d_end = std::min(d + slice, dim);
      for (int64_t i = 0; i < g.num_active; ++i) {
        const int32_t e = g.active[i];
        const int64_t first = g.first[e], count = g.first[e + 1] - first;
        Product p{.weight = weight(table.w2, table.w2_scale, e, dim, ffn),
                  .x = {act.data + first * act.row_stride, act.row_stride, act.block_stride},
                  .rows = count,
                  .y = part + first * slice,
                  .y_stride = slice,
                  .y_first = d};
        p.weight_row_bytes = p.weight.row_bytes();
        kernels.product(p, d, d_end, 0, count);
      }
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t k = 0; k < topk; ++k) {
          if (const int32_t pair = g.place[t * topk + k]; pair >= 0) kernels.add_row(part + pair * slice, d_end - d, a.y.row(t) + d);
        }
      }
    }
  });
  return ok_status();
}

}  // namespace dsv4
