// Shared by the sm90 attention kernels: the tokens' keys in the operator's order, where they lie, their values as bfloat16, the way out.
#pragma once

#include "backends/gpu/portable/paged.h"
#include "backends/gpu/sm90/fragment.h"
#include "ops/sparse_attention.h"

namespace dsv4::gpu {

struct AttentionArgs {
  Rows<const float> q;
  int heads;
  SequenceRows rows;
  PagedRows window;
  BlockTable window_table;
  int32_t ring_rows;
  int32_t window_tokens;
  int32_t ratio;
  PagedRows compressed;
  BlockTable compressed_table;
  int64_t max_compressed;
  Rows<const int32_t> topk;
  int topk_cols;
  const float* sink;
  float scale;
  Rows<const float> cos_sin;
  Rows<float> o;
  int splits;          // most a token can have
  float* part;         // [tokens][splits][heads][kDim]
  float2* part_stats;  // [tokens][splits][heads]: maximum, sum; sum 0 = the split has no keys
};

__device__ inline uint32_t bf16x2(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
// Two values as three bfloat16 terms each.
__device__ inline void split_pair(float low, float high, uint32_t (&term)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    term[i] = bf16x2(low, high);
    low -= __uint_as_float(term[i] << 16);
    high -= __uint_as_float(term[i] & 0xffff0000u);
  }
}

// Four E4M3 values times 2^(code - 127) as bfloat16, exact while the scale is within 2^-100 .. 2^100.
__device__ inline uint2 e4m3x4_to_bf16(uint32_t v, float scale) {
  const uint2 f16 = e4m3x4_to_f16x4(v);
  float2 a, b;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(a.x), "=f"(a.y) : "r"(f16.x));
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(b.x), "=f"(b.y) : "r"(f16.y));
  return {bf16x2(a.x * scale, a.y * scale), bf16x2(b.x * scale, b.y * scale)};
}

struct Token {
  int64_t t, slot;
  int32_t position, first;
  int in_window, keys;
};

// A token without its chosen rows: from what no kernel writes. All threads call.
__device__ inline Token open_token(const AttentionArgs& a, int64_t t, int& listed) {
  Token k{t, a.rows.slots[t], a.rows.positions[t], 0, 0, 0};
  if (threadIdx.x == 0) listed = a.topk_cols;
  if (k.position >= 0) {
    k.first = k.position - a.window_tokens + 1 > 0 ? k.position - a.window_tokens + 1 : 0;
    k.in_window = k.position - k.first + 1;
    k.keys = k.in_window;
    if (a.ratio == 128) {
      const int64_t rows = (static_cast<int64_t>(k.position) + 1) / 128;
      k.keys += static_cast<int>(rows < a.max_compressed ? rows : a.max_compressed);
    }
  }
  return k;
}
// Adds the chosen rows. All threads call, behind a barrier after open_token; ends with one.
__device__ inline void count_choices(const AttentionArgs& a, Token& k, int& listed) {
  if (k.position >= 0 && a.ratio == 4) {
    for (int i = static_cast<int>(threadIdx.x); i < a.topk_cols; i += static_cast<int>(blockDim.x)) {
      if (a.topk.row(k.t)[i] < 0) atomicMin(&listed, i);
    }
  }
  __syncthreads();
  if (k.position >= 0 && a.ratio == 4) k.keys += listed;
}

// Key i of the token, of those counted so far; nowhere if there are fewer.
__device__ inline RowPlace place_of_key(const AttentionArgs& a, const Token& k, int i) {
  if (i < k.in_window) return row_place(a.window, a.window_table, k.slot, (k.first + i) % a.ring_rows);
  if (i >= k.keys) return {nullptr, nullptr};
  const int64_t j = a.ratio == 4 ? a.topk.row(k.t)[i - k.in_window] : i - k.in_window;
  return row_place(a.compressed, a.compressed_table, k.slot, j);
}
// Two neighbours of the output, rotated by the negative angle.
__device__ inline void rotate_back(const float* cos_sin, float& x, float& y) {
  const float c = cos_sin[0], s = -cos_sin[1], x0 = x;
  x = x0 * c - y * s;
  y = x0 * s + y * c;
}
// Two neighbours of the output; `d` even.
__device__ inline void put_output(const AttentionArgs& a, int64_t t, int head, int d, float x, float y) {
  if (d >= kMlaNopeDim) rotate_back(a.cos_sin.row(t) + d - kMlaNopeDim, x, y);
  float* to = a.o.row(t) + static_cast<int64_t>(head) * kMlaRowDim + d;
  to[0] = x;
  to[1] = y;
}

// Many rows and a multiple of 64 heads (attend_token.cu).
inline constexpr int kTokenHeads = 64;
Status launch_attend_token(GpuContext& gpu, const AttentionArgs& args, int64_t tokens);

}  // namespace dsv4::gpu
