// Scores of packed index keys (mxfp4 rows of 128 values) on tensor cores, as their kernels share it.
//
// Queries are operand A in shared memory: for 16 heads and a step of 16 dimensions kQueryStepBytes, of which lane 4g + c has 16: heads g and g + 8, of
// the lane's 32 values those the key has at the same place. A warp takes kWarpKeys keys: lane (g, c) reads the 16 bytes of group c of key 8 tile + g,
// which are 32 values under one scale, exact in bfloat16. Scores sum over heads in a fixed order: heads of a lane, then the eight lanes of a column.
#pragma once

#include "backends/gpu/portable/indexer_topk.h"
#include "backends/gpu/portable/paged.h"
#include "backends/gpu/sm90/fragment.h"

namespace dsv4::gpu {

inline constexpr int kIndexDim = 128;
inline constexpr int kWarpKeys = 16;
inline constexpr int kIndexTiles = kWarpKeys / 8;
inline constexpr int kIndexSteps = kIndexDim / 16;
inline constexpr int kQueryStepBytes = 32 * 16 + 16;  // padded against bank conflicts of those who write it
inline constexpr int kQueryTileBytes = kIndexSteps * kQueryStepBytes;

__device__ inline uint32_t bf16_pair(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

// Where heads 16 tile + g and 16 tile + g + 8 (r = 1) have, for step s, their values of lane 4g + c: two pairs of bfloat16. Of its 32 values of word
// w = s / 2 of the key, the step covers 2(s % 2) + {0, 4, 1, 5}, in that order.
__device__ inline uint2* query_place(uint8_t* queries, int head, int step, int c) {
  const int g = head % 8, r = head / 8 % 2;
  return reinterpret_cast<uint2*>(queries + head / 16 * kQueryTileBytes + step * kQueryStepBytes + (4 * g + c) * 16 + r * 8);
}

// A warp's keys as they lie in memory; rows from `end` on read as zeros. key0 is a multiple of kWarpKeys, so that all lie in one block.
struct IndexKeys {
  uint4 data[kIndexTiles];
  int scale[kIndexTiles];
};
// The id of their block, which may be asked for long before they are.
__device__ inline int32_t index_block(const PagedRows& rows, const BlockTable& table, int64_t slot, int64_t key0) {
  return table.ids[slot * table.stride + static_cast<uint32_t>(key0) / static_cast<uint32_t>(rows.block_rows)];
}
__device__ inline IndexKeys fetch_index_keys(const PagedRows& rows, int32_t block, int64_t key0, int64_t end, int lane) {
  const uint32_t offset = static_cast<uint32_t>(key0) % static_cast<uint32_t>(rows.block_rows);
  const uint8_t* const data = rows.base + block * rows.block_stride_bytes + offset * (kIndexDim / 2) + 16 * (lane % 4);
  const uint8_t* const scale =
      rows.base + block * rows.block_stride_bytes + static_cast<int64_t>(rows.block_rows) * (kIndexDim / 2) + offset * (kIndexDim / 32) + lane % 4;
  IndexKeys k;
#pragma unroll
  for (int i = 0; i < kIndexTiles; ++i) {
    const int key = 8 * i + lane / 4;
    k.data[i] = {0, 0, 0, 0};
    k.scale[i] = 127;
    if (key0 + key < end) {
      k.data[i] = *reinterpret_cast<const uint4*>(data + key * (kIndexDim / 2));
      k.scale[i] = scale[key * (kIndexDim / 32)];
    }
  }
  return k;
}

// Codes i and i + 4 of a word of eight E2M1 codes, times 2^-126, as bfloat16: subnormal where the code is.
template <int i>
__device__ inline uint32_t e2m1_pair(uint32_t word) {
  const uint32_t top = word << (12 - 4 * i);
  return (top & 0x80008000u) | ((top >> 6) & 0x01c001c0u);
}
__device__ inline uint32_t times_bf16(uint32_t pair, uint32_t factor) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(factor));
  return out;
}
// A power of two 2^exponent twice over, as bfloat16; exponent within -126 .. 127.
__device__ inline uint32_t power_bf16(int exponent) { return static_cast<uint32_t>(exponent + 127) * 0x00800080u; }

// Scores of keys key0 .. key0 + 15 below `end`, in ordered form, by put(key, score). `queries`: this lane's part, `terms` terms of term_bytes; heads in
// kTogether tiles at a time.
template <int kTogether, class Put>
__device__ inline void score_index_keys(const IndexKeys& keys, const uint8_t* queries, int terms, int term_bytes, int head_tiles, const float* weights,
                                        int64_t key0, int64_t end, int lane, const Put& put) {
  const int g = lane / 4, c = lane % 4;
  uint2 b[kIndexTiles][kIndexSteps];
#pragma unroll
  for (int i = 0; i < kIndexTiles; ++i) {
    // 2^126 and the scale, in two steps that stay within bfloat16: scales from 2^-126 to 2^64.
    const uint32_t half = power_bf16(63), rest = power_bf16(max(-126, min(keys.scale[i] - 127 + 63, 127)));
    const uint32_t words[4] = {keys.data[i].x, keys.data[i].y, keys.data[i].z, keys.data[i].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      b[i][2 * w] = {times_bf16(times_bf16(e2m1_pair<0>(words[w]), half), rest), times_bf16(times_bf16(e2m1_pair<1>(words[w]), half), rest)};
      b[i][2 * w + 1] = {times_bf16(times_bf16(e2m1_pair<2>(words[w]), half), rest), times_bf16(times_bf16(e2m1_pair<3>(words[w]), half), rest)};
    }
  }
  float total[kIndexTiles][2] = {};
#pragma unroll 1
  for (int tile = 0; tile < head_tiles; tile += kTogether) {
    float acc[kTogether][kIndexTiles][4] = {};
    for (int term = 0; term < terms; ++term) {
#pragma unroll
      for (int s = 0; s < kIndexSteps; ++s) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const uint4 w = *reinterpret_cast<const uint4*>(queries + term * term_bytes + (tile + j) * kQueryTileBytes + s * kQueryStepBytes);
          const OperandA q = {{w.x, w.z, w.y, w.w}};
#pragma unroll
          for (int i = 0; i < kIndexTiles; ++i) mma_bf16(acc[j][i], q, b[i][s]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float low = weights[(tile + j) * 16 + g], high = weights[(tile + j) * 16 + g + 8];
#pragma unroll
      for (int i = 0; i < kIndexTiles; ++i) {
        total[i][0] = __fmaf_rn(high, fmaxf(acc[j][i][2], 0.0f), __fmaf_rn(low, fmaxf(acc[j][i][0], 0.0f), total[i][0]));
        total[i][1] = __fmaf_rn(high, fmaxf(acc[j][i][3], 0.0f), __fmaf_rn(low, fmaxf(acc[j][i][1], 0.0f), total[i][1]));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kIndexTiles; ++i) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float v = total[i][k];
      v = __fadd_rn(v, shuffle_xor(v, 4));
      v = __fadd_rn(v, shuffle_xor(v, 8));
      v = __fadd_rn(v, shuffle_xor(v, 16));
      const int64_t key = key0 + 8 * i + 2 * c + k;
      if (g == 0 && key < end) put(key, ordered_score(v));
    }
  }
}

// The layout both kinds of scorers want.
inline bool packed_index_keys(const PagedRows& keys) {
  return keys.format == RowFormat::kMxfp4 && keys.block_rows % kWarpKeys == 0 && keys.row_dim == kIndexDim &&
         reinterpret_cast<uintptr_t>(keys.base) % 16 == 0 && keys.block_stride_bytes % 16 == 0;
}

}  // namespace dsv4::gpu
