// Operators that are one kernel per row (or per head): embed, rope_table, rms_norm, swiglu, query_norm_rope, indexer_query, argmax.
#include <cmath>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "ops/device.h"

namespace dsv4 {
namespace {

// Rough cost of one exponential or one rounded value, in elementary steps.
constexpr int64_t kHeavyValue = 4;

}  // namespace

Status embed_cpu(OpContext& context, const EmbedArgs& a) {
  CpuContext& c = cpu_context(context);
  for_ranges(c, a.h.rows, 1, a.h.cols / 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t id = a.token_ids.data[t];
      if (id < 0) {
        std::fill_n(a.h.row(t), a.h.cols, 0.0f);
      } else {
        c.kernels->embed_row(a.table.row(id), a.table.cols, a.streams, a.h.row(t));
      }
    }
  });
  return ok_status();
}

Status rope_table_cpu(OpContext& context, const RopeTableArgs& a) {
  for_ranges(cpu_context(context), a.out.rows, 4, a.out.cols * 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t p = a.positions.data[t] + a.offset;
      float* out = a.out.row(t);
      for (int64_t i = 0; i < a.freqs.size; ++i) {
        const float angle = p < 0 || a.positions.data[t] < 0 ? 0.0f : static_cast<float>(p) * a.freqs.data[i];
        out[2 * i] = std::cos(angle);
        out[2 * i + 1] = std::sin(angle);
      }
    }
  });
  return ok_status();
}

Status rms_norm_cpu(OpContext& context, const RmsNormArgs& a) {
  CpuContext& c = cpu_context(context);
  for_ranges(c, a.x.rows, 1, a.x.cols / 2, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) c.kernels->rms_norm_row(a.x.row(t), a.weight, a.x.cols, a.eps, a.out.row(t));
  });
  return ok_status();
}

Status swiglu_cpu(OpContext& context, const SwigluArgs& a) {
  CpuContext& c = cpu_context(context);
  for_ranges(c, a.gate.rows, 1, a.gate.cols * kHeavyValue, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) c.kernels->swiglu_row(a.gate.row(t), a.up.row(t), a.gate.cols, a.limit, a.out.row(t));
  });
  return ok_status();
}

Status query_norm_rope_cpu(OpContext& context, const QueryNormRopeArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t dim = a.q.cols / a.heads;
  for_ranges(c, a.q.rows * a.heads, 16, dim / 2, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / a.heads;
      c.kernels->query_norm_rope_head(a.q.row(t) + i % a.heads * dim, dim, a.cos_sin.row(t), a.cos_sin.cols, a.eps);
    }
  });
  return ok_status();
}

Status indexer_query_cpu(OpContext& context, const IndexerQueryArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t dim = a.q.cols / a.heads;
  for_ranges(c, a.q.rows * a.heads, 16, dim * kHeavyValue, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / a.heads;
      c.kernels->indexer_query_head(a.q.row(t) + i % a.heads * dim, dim, a.cos_sin.row(t), a.cos_sin.cols, a.round_e2m1);
    }
  });
  return ok_status();
}

Status argmax_cpu(OpContext& context, const ArgmaxArgs& a) {
  CpuContext& c = cpu_context(context);
  for_ranges(c, a.logits.rows, 1, a.logits.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) a.ids.data[r] = c.kernels->argmax_row(a.logits.row(r), a.logits.cols);
  });
  return ok_status();
}

}  // namespace dsv4
