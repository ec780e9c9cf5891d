// Steps that the kernels of hc_pre share. Whichever kernel runs, every sum has one order, so no token's bits depend on it.
#pragma once

#include "backends/gpu/portable/codec.h"
#include "backends/gpu/runtime/kernel.h"

namespace dsv4::gpu {

inline constexpr int kHcSlice = 256;  // values of f whose part of a mix is one sum
inline constexpr int kHcPerLane = kHcSlice / kGroupLanes;
inline constexpr int kHcMixesPerGroup = 4;
inline constexpr int kHcApplyThreads = 1024;  // whose partial sums make the norm's: thread i has columns 4 i .. 4 i + 3

// The group's sums of kValues values, each added in group_sum's tree: lane l gets that of value l / (kGroupLanes / kValues). Halving the values with
// the distance takes 31 exchanges for 32 sums instead of 160.
template <int kValues, int kDistance = kGroupLanes / 2>
__device__ float group_sums(float (&v)[kValues]) {
  static_assert(kValues <= kGroupLanes && (kValues & (kValues - 1)) == 0);
  if constexpr (kDistance == 0) {
    return v[0];
  } else if constexpr (kValues == 1) {
    float sum[1] = {v[0] + shuffle_xor(v[0], kDistance)};
    return group_sums<1, kDistance / 2>(sum);
  } else {
    constexpr int kHalf = kValues / 2;
    const bool upper = (group_lane() & kDistance) != 0;
    float half[kHalf];
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      const float keep = upper ? v[k + kHalf] : v[k], send = upper ? v[k] : v[k + kHalf];
      half[k] = keep + shuffle_xor(send, kDistance);
    }
    return group_sums<kHalf, kDistance / 2>(half);
  }
}

// comb from its 16 (m*m) mixed values, in place, by one thread. kStreams > 0 keeps them in registers.
template <int kStreams>
__device__ inline void sinkhorn(float* values, int runtime_streams, int iterations, float eps) {
  const int m = kStreams > 0 ? kStreams : runtime_streams;
  float local[kStreams > 0 ? kStreams * kStreams : 1];
  float* c = kStreams > 0 ? local : values;
  if (kStreams > 0) {
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i) local[i] = values[i];
  }
#pragma unroll
  for (int r = 0; r < m; ++r) {
    float top = c[r * m], sum = 0;
#pragma unroll
    for (int k = 1; k < m; ++k) top = fmaxf(top, c[r * m + k]);
#pragma unroll
    for (int k = 0; k < m; ++k) sum += c[r * m + k] = expf(c[r * m + k] - top);
#pragma unroll
    for (int k = 0; k < m; ++k) c[r * m + k] = __fdividef(c[r * m + k], sum) + eps;
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    if (iteration > 0) {
#pragma unroll
      for (int r = 0; r < m; ++r) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < m; ++k) sum += c[r * m + k];
        const float inverse = __fdividef(1.0f, sum + eps);
#pragma unroll
        for (int k = 0; k < m; ++k) c[r * m + k] *= inverse;
      }
    }
#pragma unroll
    for (int k = 0; k < m; ++k) {
      float sum = 0;
#pragma unroll
      for (int r = 0; r < m; ++r) sum += c[r * m + k];
      const float inverse = __fdividef(1.0f, sum + eps);
#pragma unroll
      for (int r = 0; r < m; ++r) c[r * m + k] *= inverse;
    }
  }
  if (kStreams > 0) {
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i) values[i] = local[i];
  }
}

struct HcApplyArgs {
  Rows<const float> h;
  const float* parts;
  int64_t slices;
  const float* base;
  const float* scale;
  const uint16_t* norm;
  int streams;
  int sinkhorn_iters;
  int64_t dim;
  float rms_eps;
  float hc_eps;
  Rows<float> x, post, comb;
};

// Steps that the kernels below share, written out so that no compiler fuses them differently in one of them.
__device__ inline float4 weighted(float4 x, float pre, float4 f) {
  return {__fmaf_rn(pre, f.x, x.x), __fmaf_rn(pre, f.y, x.y), __fmaf_rn(pre, f.z, x.z), __fmaf_rn(pre, f.w, x.w)};
}
__device__ inline float square_sum(float4 x) { return __fmaf_rn(x.w, x.w, __fmaf_rn(x.z, x.z, __fmaf_rn(x.y, x.y, __fmul_rn(x.x, x.x)))); }
__device__ inline void store_normed(const HcApplyArgs& a, int64_t t, int64_t d, ushort4 norm, float4 x, float inverse) {
  *reinterpret_cast<float4*>(a.x.row(t) + d) = {decode_bf16(norm.x) * (x.x * inverse), decode_bf16(norm.y) * (x.y * inverse),
                                                decode_bf16(norm.z) * (x.z * inverse), decode_bf16(norm.w) * (x.w * inverse)};
}

// What hc_post makes of one value of a stream: post * y + sum of comb[j] * old[j]; comb's column lies kStreams apart.
template <int kStreams>
__device__ inline float mixed_stream(float post, float y, const float* comb, const float (&old)[kStreams]) {
  float sum = __fmul_rn(post, y);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) sum = __fmaf_rn(comb[j * kStreams], old[j], sum);
  return sum;
}

// By one group; mix holds the sums.
__device__ inline void post_and_comb(const HcApplyArgs& a, int64_t t, float* mix) {
  const int m = a.streams, mixes = (2 + m) * m, lane = group_lane();
  const float root = sqrtf(mix[mixes] / static_cast<float>(m * a.dim) + a.rms_eps);
  for (int k = lane; k < m; k += kGroupLanes) a.post.row(t)[k] = 2.0f * sigmoid(mix[m + k] / root * a.scale[1] + a.base[m + k]);
  for (int k = lane; k < m * m; k += kGroupLanes) mix[2 * m + k] = mix[2 * m + k] / root * a.scale[2] + a.base[2 * m + k];
  group_sync();
  if (lane == 0) {
    if (m == 4) {
      sinkhorn<4>(mix + 2 * m, m, a.sinkhorn_iters, a.hc_eps);
    } else {
      sinkhorn<0>(mix + 2 * m, m, a.sinkhorn_iters, a.hc_eps);
    }
  }
  group_sync();
  for (int k = lane; k < m * m; k += kGroupLanes) a.comb.row(t)[k] = mix[2 * m + k];
}

}  // namespace dsv4::gpu
