// embed: one block per (token, slice of D); a thread reads one value and writes it to every stream. Bound by writing h.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/codec.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void embed_rows(Rows<const uint16_t> table, const int32_t* ids, int64_t dim, int64_t streams, Rows<float> h) {
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.y, d = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (d >= dim) return;
  const int32_t id = ids[t];
  const float v = id < 0 ? 0.0f : decode_bf16(table.row(id)[d]);
  for (int64_t s = 0; s < streams; ++s) h.row(t)[s * dim + d] = v;
}

}  // namespace

Status embed_portable(OpContext& context, const EmbedArgs& a) {
  return launch(gpu_context(context), "embed", embed_rows, {.blocks_x = ceil_div(a.table.cols, kThreads), .blocks_y = a.h.rows, .threads = kThreads},
                rows_of(a.table), a.token_ids.data, a.table.cols, a.streams, rows_of(a.h));
}

}  // namespace dsv4::gpu
