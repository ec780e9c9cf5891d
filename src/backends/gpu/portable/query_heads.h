// One head of query_norm_rope and of indexer_query in the registers of a lane group, as several kernels make it. Written out, so that no compiler fuses
// it differently in one of them.
#pragma once

#include "backends/gpu/portable/codec.h"
#include "backends/gpu/runtime/kernel.h"

namespace dsv4::gpu {

// Two neighbouring pairs, turned by cos, sin, cos, sin.
__device__ inline float4 turned(float4 v, float4 by) {
  return {__fmaf_rn(v.x, by.x, -__fmul_rn(v.y, by.y)), __fmaf_rn(v.x, by.y, __fmul_rn(v.y, by.x)), __fmaf_rn(v.z, by.z, -__fmul_rn(v.w, by.w)),
          __fmaf_rn(v.z, by.w, __fmul_rn(v.w, by.z))};
}

// A head of 128 * kRounds values at `x`, in place: a lane has four neighbours of each round. cos_sin: `rope` values (a multiple of 4) for the head's last
// ones. Rows are 16-byte aligned.
template <int kRounds>
__device__ inline void norm_and_rotate_head(float* head, const float* cos_sin, int rope, float eps) {
  constexpr int kDim = 4 * kGroupLanes * kRounds;
  float4* const x = reinterpret_cast<float4*>(head) + group_lane();
  float4 v[kRounds], turn[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    v[i] = x[i * kGroupLanes];
    const int at = 4 * (i * kGroupLanes + group_lane()) - (kDim - rope);
    turn[i] = at >= 0 ? *reinterpret_cast<const float4*>(cos_sin + at) : float4{1, 0, 1, 0};
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    sum = __fadd_rn(sum, __fmaf_rn(v[i].w, v[i].w, __fmaf_rn(v[i].z, v[i].z, __fmaf_rn(v[i].x, v[i].x, __fmul_rn(v[i].y, v[i].y)))));
  }
  const float inverse = __frcp_rn(__fsqrt_rn(__fmaf_rn(group_sum(sum), 1.0f / static_cast<float>(kDim), eps)));
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const float4 n = {__fmul_rn(v[i].x, inverse), __fmul_rn(v[i].y, inverse), __fmul_rn(v[i].z, inverse), __fmul_rn(v[i].w, inverse)};
    x[i * kGroupLanes] = 4 * (i * kGroupLanes + group_lane()) >= kDim - rope ? turned(n, turn[i]) : n;
  }
}

// round_e2m1_by(x, decode_e8m0(code)) in fewer steps; |x| is at most about six times the scale. Ties go to the smaller magnitude.
__device__ inline float round_e2m1_at(float x, uint8_t code) {
  const float a = fabsf(__fmul_rn(x, decode_e8m0(code == 255 ? 255 : 254 - code)));
  // From 1 on one bit of the mantissa is left; below, there is 0.5. A NaN among numbers counts as 0.
  const float small = (a > 0.25f ? 0.5f : 0.0f) + (a > 0.75f ? 0.5f : 0.0f);
  const float r = a >= 1.0f ? __uint_as_float((__float_as_uint(a) + 0x1fffffu) & 0xffc00000u) : small;
  return copysignf(__fmul_rn(r, decode_e8m0(code)), x);
}

// The angles of the lane's four neighbours of a head of 128 values whose last `rope` (a multiple of 4) turn.
struct IndexTurn {
  bool turns;
  float4 by;
};
__device__ inline IndexTurn index_turn(const float* cos_sin, int rope) {
  const int at = 4 * group_lane() - (4 * kGroupLanes - rope);
  return at < 0 ? IndexTurn{false, {1, 0, 1, 0}} : IndexTurn{true, {cos_sin[at], cos_sin[at + 1], cos_sin[at + 2], cos_sin[at + 3]}};
}

// indexer_query of a head of 128 values, of which the lane has four neighbours: rotation, transform, rounding if wanted. The transform's first two
// strides stay in the lane, the others are exchanges.
__device__ inline float4 index_head(float4 x, const IndexTurn& turn, bool round_e2m1) {
  const int lane = group_lane();
  if (turn.turns) x = turned(x, turn.by);
  const float a0 = x.x + x.y, a1 = x.x - x.y, a2 = x.z + x.w, a3 = x.z - x.w;
  float v[4] = {a0 + a2, a1 + a3, a0 - a2, a1 - a3};
#pragma unroll
  for (int stride = 1; stride < kGroupLanes; stride *= 2) {
    const float sign = (lane & stride) == 0 ? 1.0f : -1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __fmaf_rn(v[i], sign, shuffle_xor(v[i], stride));
  }
  const float scale = 0.0883883461f;  // 128^-0.5, as the float nearest to it
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = __fmul_rn(v[i], scale);
    amax = fmaxf(amax, fabsf(v[i]));
  }
  if (round_e2m1) {
    for (int m = 1; m < 8; m *= 2) amax = fmaxf(amax, shuffle_xor(amax, m));  // 8 lanes hold a group of 32
    const uint8_t code = e2m1_scale_of(amax);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = round_e2m1_at(v[i], code);
  }
  return {v[0], v[1], v[2], v[3]};
}

}  // namespace dsv4::gpu
