// Tensor-core operands from strips (weight_layout.h), and the one order of additions that the sm90 product kernels keep (but for
// folded_product.cu and moe_wide.cu, which take many rows):
//
//   chunk   128 columns. fp8: eight 16-step products into a fresh accumulator, then sum += accumulator * (scale of x * scale of w). mxfp4: two steps
//           per 32-group into a fresh accumulator, part += accumulator * scale of w, then sum += part * (scale of x * 2^14). bf16: straight into sum.
//   group   the chunks group_begin(g) .. group_begin(g + 1), in order, into sum, from zero.
//   result  ((sum_0 + sum_1) + sum_2) + ... over kKGroups groups; then the terms of x: t0, t0 + t1, or t0 + (t1 + t2).
//
// The weight is the 16-row operand A, activations are the 8 columns of operand B; a lane's values follow weight_layout.h for A, and for B lane
// 4g + t holds, of column g, the values of k = 16 s + 4t .. + 3 (8 bytes): the same permutation of k on both sides.
#pragma once

#include <cstdint>

#include "backends/gpu/kernel_plan.h"
#include "backends/gpu/runtime/kernel.h"
#include "backends/gpu/weight_layout.h"

namespace dsv4::gpu {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ inline void copy16_async(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ inline void copy4_async(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's committed groups are under way.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline uint4 load_shared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
__device__ inline uint2 load_shared8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}

struct OperandA {
  uint32_t r[4];
};

__device__ inline void mma_f16(float (&c)[4], const OperandA& a, uint2 b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.x), "r"(b.y));
}
__device__ inline void mma_bf16(float (&c)[4], const OperandA& a, uint2 b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.x), "r"(b.y));
}

// Four E4M3 values as float16, exact: the low two, the high two.
__device__ inline uint2 e4m3x4_to_f16x4(uint32_t v) {
  uint2 out;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}" : "=r"(out.x), "=r"(out.y) : "r"(v));
  return out;
}

// Pair kPair of an mxfp4 word as float16 values times 2^-14, exact.
template <int kPair>
__device__ inline uint32_t mxfp4_pair(uint32_t word) {
  return strip_mxfp4_pair(word, kPair);
}
inline constexpr float kMxfp4Unit = 16384.0f;  // 2^14, owed to mxfp4_pair

// Steps 2 * piece and 2 * piece + 1 of an fp8 chunk.
__device__ inline void fp8_operands(uint4 w, OperandA& even, OperandA& odd) {
  const uint2 x = e4m3x4_to_f16x4(w.x), y = e4m3x4_to_f16x4(w.y), z = e4m3x4_to_f16x4(w.z), v = e4m3x4_to_f16x4(w.w);
  even = {{x.x, y.x, x.y, y.y}};
  odd = {{z.x, v.x, z.y, v.y}};
}
// The two steps of one 32-group of an mxfp4 chunk, from its words of rows g and g + 8.
__device__ inline void mxfp4_operands(uint32_t low, uint32_t high, OperandA& even, OperandA& odd) {
  even = {{mxfp4_pair<0>(low), mxfp4_pair<0>(high), mxfp4_pair<1>(low), mxfp4_pair<1>(high)}};
  odd = {{mxfp4_pair<2>(low), mxfp4_pair<2>(high), mxfp4_pair<3>(low), mxfp4_pair<3>(high)}};
}
__device__ inline OperandA bf16_operand(uint4 w) { return {{w.x, w.z, w.y, w.w}}; }

// A piece is what one pipeline slot holds of a strip: a chunk, or half a bf16 chunk.
template <WeightFormat kFormat>
struct PieceOf;
template <>
struct PieceOf<WeightFormat::kFp8Block> {
  static constexpr int kPerChunk = 1, kSteps = 8, kDataBytes = kFp8ChunkBytes, kScaleBytes = 0;
};
template <>
struct PieceOf<WeightFormat::kBF16> {
  static constexpr int kPerChunk = 2, kSteps = 4, kDataBytes = kBf16ChunkBytes / 2, kScaleBytes = 0;
};
template <>
struct PieceOf<WeightFormat::kMxfp4> {
  static constexpr int kPerChunk = 1, kSteps = 8, kDataBytes = kMxfp4ChunkBytes, kScaleBytes = kMxfp4ChunkScaleBytes;
};

// The warp copies a piece of one strip: every lane the bytes it will read itself, but for mxfp4's scales.
template <WeightFormat kFormat>
__device__ inline void copy_piece(uint32_t to_shared, const uint8_t* data, const uint8_t* scale, int lane) {
  using Piece = PieceOf<kFormat>;
#pragma unroll
  for (int i = 0; i < Piece::kDataBytes / 512; ++i) copy16_async(to_shared + i * 512 + lane * 16, data + i * 512 + lane * 16);
  if constexpr (Piece::kScaleBytes != 0) {
    if (lane < Piece::kScaleBytes / 16) copy16_async(to_shared + Piece::kDataBytes + lane * 16, scale + lane * 16);
  }
}

// 2^(byte q of `scales` - 127); codes 0 and 255 become 0 and infinity.
__device__ inline float mxfp4_scale(uint32_t scales, int q) { return __uint_as_float((q < 3 ? scales << (23 - 8 * q) : scales >> 1) & 0x7f800000u); }
// part += acc * the scales of rows g and g + 8.
__device__ inline void add_group(float (&part)[4], const float (&acc)[4], float low, float high) {
  part[0] = __fmaf_rn(acc[0], low, part[0]);
  part[1] = __fmaf_rn(acc[1], low, part[1]);
  part[2] = __fmaf_rn(acc[2], high, part[2]);
  part[3] = __fmaf_rn(acc[3], high, part[3]);
}
// sum += acc * (scale of the column * factor).
template <int kTiles>
__device__ inline void add_scaled(float (&sum)[kTiles][4], const float (&acc)[kTiles][4], const float2 (&x_scale)[kTiles], float factor) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float f0 = __fmul_rn(x_scale[tile].x, factor), f1 = __fmul_rn(x_scale[tile].y, factor);
    sum[tile][0] = __fmaf_rn(acc[tile][0], f0, sum[tile][0]);
    sum[tile][1] = __fmaf_rn(acc[tile][1], f1, sum[tile][1]);
    sum[tile][2] = __fmaf_rn(acc[tile][2], f0, sum[tile][2]);
    sum[tile][3] = __fmaf_rn(acc[tile][3], f1, sum[tile][3]);
  }
}

// sum[tile] += the products of one piece with kTiles column tiles. `weight_scale`: fp8's block scale. x_scale[tile]: the scales of the lane's two
// columns (2t, 2t + 1); unused for bf16. load_b(tile, step) gives operand B. The piece lies in shared memory at `at`.
template <WeightFormat kFormat, int kTiles, class LoadB>
__device__ inline void piece_product(float (&sum)[kTiles][4], uint32_t at, int lane, float weight_scale, const float2 (&x_scale)[kTiles], LoadB load_b) {
  if constexpr (kFormat == WeightFormat::kBF16) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const OperandA a = bf16_operand(load_shared16(at + s * 512 + lane * 16));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) mma_bf16(sum[tile], a, load_b(tile, s));
    }
  } else if constexpr (kFormat == WeightFormat::kFp8Block) {
    float acc[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      OperandA even, odd;
      fp8_operands(load_shared16(at + i * 512 + lane * 16), even, odd);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        mma_f16(acc[tile], even, load_b(tile, 2 * i));
        mma_f16(acc[tile], odd, load_b(tile, 2 * i + 1));
      }
    }
    add_scaled(sum, acc, x_scale, weight_scale);
  } else {
    float part[kTiles][4] = {};
    const uint2 scales = load_shared8(at + kMxfp4ChunkBytes + lane / 4 * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 w = load_shared16(at + i * 512 + lane * 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int q = 2 * i + half;
        OperandA even, odd;
        mxfp4_operands(half == 0 ? w.x : w.z, half == 0 ? w.y : w.w, even, odd);
        const float low = mxfp4_scale(scales.x, q), high = mxfp4_scale(scales.y, q);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          float acc[4] = {};
          mma_f16(acc, even, load_b(tile, 2 * q));
          mma_f16(acc, odd, load_b(tile, 2 * q + 1));
          add_group(part[tile], acc, low, high);
        }
      }
    }
    add_scaled(sum, part, x_scale, kMxfp4Unit);
  }
}

// The result of up to three terms, in the one order.
__device__ inline float combine_terms(const float* term_sums, int terms) {
  if (terms == 1) return term_sums[0];
  if (terms == 2) return __fadd_rn(term_sums[0], term_sums[1]);
  return __fadd_rn(term_sums[0], __fadd_rn(term_sums[1], term_sums[2]));
}

}  // namespace dsv4::gpu
