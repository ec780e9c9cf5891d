// What the kernels share that make hyper-connection mixes by clusters of 16 blocks: a block has 256 columns of the four streams, one slice of each.
#pragma once

#include "backends/gpu/portable/hc_pre.h"
#include "backends/gpu/runtime/cluster.h"

namespace dsv4::gpu {

inline constexpr int kHcBlocks = 16;
inline constexpr int64_t kHcDim = 4096;
inline constexpr int kHcStreams = 4, kHcMixes = (2 + kHcStreams) * kHcStreams;
inline constexpr int kHcSlices = static_cast<int>(kHcStreams * kHcDim) / kHcSlice;
inline constexpr int kHcXGroups = 2;  // of each block: 128 columns of x each
static_assert(kHcMixes % kHcMixesPerGroup == 0 && kHcStreams == kHcMixesPerGroup);
static_assert(kHcSlices == 2 * kGroupLanes && kHcDim == kHcBlocks * kHcXGroups * kGroupLanes * 4 && kHcDim == 4 * kHcApplyThreads);

// What add_parts of the two-launch version adds: a lane has two slices.
__device__ inline float sum_of_slices(float first, float second) {
  float sum = 0;
  sum += first;
  sum += second;
  return group_sum(sum);
}

// The hc_post in front of it.
struct PostSide {
  Rows<const float> y, post, comb;
  Rows<const float> h;
  Rows<float> next;  // h, or a place of its own
};

// Column `at` of the streams behind the hc_post of token t.
__device__ inline void next_streams(const PostSide& before, int64_t t, int64_t at, float (&next)[kHcStreams]) {
  float f[kHcStreams], post[kHcStreams], comb[kHcStreams * kHcStreams];
#pragma unroll
  for (int i = 0; i < kHcStreams; ++i) f[i] = before.h.row(t)[i * kHcDim + at];
#pragma unroll
  for (int i = 0; i < kHcStreams; ++i) post[i] = before.post.row(t)[i];
#pragma unroll
  for (int i = 0; i < kHcStreams * kHcStreams; ++i) comb[i] = before.comb.row(t)[i];
  const float y = before.y.row(t)[at];
#pragma unroll
  for (int k = 0; k < kHcStreams; ++k) next[k] = mixed_stream<kHcStreams>(post[k], y, comb + k, f);
}

// Four columns of x, from the sums of all slices: mixes of pre, then f.f.
__device__ inline float4 x_of(const HcApplyArgs& a, const float (*parts)[kHcStreams + 1], int lane, float scale, const float* base,
                              const float4 (&f)[kHcStreams]) {
  float m[kHcStreams + 1];
#pragma unroll
  for (int r = 0; r <= kHcStreams; ++r) m[r] = sum_of_slices(parts[lane][r], parts[lane + kGroupLanes][r]);
  const float root = sqrtf(m[kHcStreams] / static_cast<float>(kHcStreams * kHcDim) + a.rms_eps);
  float4 x = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kHcStreams; ++i) x = weighted(x, sigmoid(m[i] / root * scale + base[i]) + a.hc_eps, f[i]);
  return x;
}

// The arguments those kernels take.
inline HcApplyArgs hc_apply_args(const HcPreArgs& a) {
  return {rows_of(a.h), nullptr,   kHcSlices, a.base,       a.scale,         a.norm,         kHcStreams, static_cast<int>(a.sinkhorn_iters),
          kHcDim,       a.rms_eps, a.hc_eps,  rows_of(a.x), rows_of(a.post), rows_of(a.comb)};
}
inline bool hc_fits_clusters(const HcPreArgs& a) {
  const auto aligned = [](const auto& m) { return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.row_stride % 4 == 0; };
  return a.h.rows > 0 && a.streams == kHcStreams && a.x.cols == kHcDim && aligned(a.x) && reinterpret_cast<uintptr_t>(a.norm) % 8 == 0;
}

}  // namespace dsv4::gpu
