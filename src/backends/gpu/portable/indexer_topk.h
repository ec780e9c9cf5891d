// Shared by the score kernels and the selection.
#pragma once

#include "backends/gpu/runtime/kernel.h"
#include "ops/indexer_topk.h"

namespace dsv4::gpu {

// Compressed rows the token at position p sees.
__device__ inline int64_t index_rows(int32_t p, int ratio, int64_t max_rows) {
  const int64_t count = p < 0 ? 0 : (static_cast<int64_t>(p) + 1) / ratio;
  return count < max_rows ? count : max_rows;
}

// An unsigned form that orders as the float does; NaN counts as -infinity, -0 as 0. Never 0.
__device__ inline uint32_t ordered_score(float x) {
  if (x != x) x = -__int_as_float(0x7f800000);
  if (x == 0.0f) x = 0.0f;
  const uint32_t u = __float_as_uint(x);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// Tokens whose scores are held at once: at most 256 MiB of them.
inline int64_t score_batch(const IndexerTopkArgs& a) {
  constexpr int64_t kMaxScoreBytes = int64_t{256} << 20;
  const int64_t fit = kMaxScoreBytes / (4 * (a.max_rows > 0 ? a.max_rows : 1));
  const int64_t batch = fit < 1 ? 1 : fit;
  return batch < a.q.rows ? batch : a.q.rows;
}

// Chooses from scores [tokens][max_rows] (ordered_score form) into a.indices, rows first_token .. first_token + tokens.
Status select_topk(GpuContext& gpu, const IndexerTopkArgs& a, const uint32_t* scores, int64_t first_token, int64_t tokens);

}  // namespace dsv4::gpu
