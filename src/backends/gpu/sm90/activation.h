// Activations as tensor-core operands (kernel_plan.h, Operand). A lane holds four neighbours of a block of 128: values 4 * lane .. + 3, which are what
// lane 4g + t of operand B wants of step lane / 4 with t = lane % 4.
#pragma once

#include <cuda_fp16.h>

#include "backends/gpu/portable/codec.h"
#include "backends/gpu/sm90/fragment.h"

namespace dsv4::gpu {

// Four neighbours, from any alignment.
__device__ inline float4 load_four(const float* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16 == 0) return *reinterpret_cast<const float4*>(p);
  return {p[0], p[1], p[2], p[3]};
}

struct ActivationBlock {
  uint2 term[3];  // four 16-bit values each
  float scale;    // of terms; 1 for bf16
};

__device__ inline float finite_rest(float x, float taken) {
  const float rest = x - taken;
  return rest == rest ? rest : 0.0f;  // infinities leave nothing behind
}

// All lanes of the group call with the block's values.
template <Operand kOperand>
__device__ inline ActivationBlock activation_block(float4 v) {
  ActivationBlock out{};
  if constexpr (kOperand == Operand::kBf16x3) {
    out.scale = 1.0f;
    float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int term = 0; term < 3; ++term) {
      uint16_t code[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        code[i] = encode_bf16(x[i]);
        x[i] = finite_rest(x[i], decode_bf16(code[i]));
      }
      out.term[term] = {static_cast<uint32_t>(code[0]) | static_cast<uint32_t>(code[1]) << 16, static_cast<uint32_t>(code[2]) | static_cast<uint32_t>(code[3])
                                                                                                                                    << 16};
    }
    return out;
  }
  if constexpr (kOperand == Operand::kBf16) {
    v = {decode_bf16(encode_bf16(v.x)), decode_bf16(encode_bf16(v.y)), decode_bf16(encode_bf16(v.z)), decode_bf16(encode_bf16(v.w))};
  }
  // Magnitudes order as their bits do; NaNs are passed over, as fmaxf does.
  const float own = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  const float amax = __uint_as_float(group_max(own == own ? __float_as_uint(own) : 0u));
  if constexpr (kOperand == Operand::kE4M3) {
    const uint8_t code = e4m3_scale_of(amax);
    out.scale = decode_e8m0(code);
    const float inverse = code == 255 ? out.scale : __uint_as_float((254u - code) << 23);
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v.y * inverse), "f"(v.x * inverse));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v.w * inverse), "f"(v.z * inverse));
    out.term[0] = e4m3x4_to_f16x4(static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16);
    return out;
  }
  // kBf16, kF16x2: the largest magnitude lands in [2^14, 2^15).
  const int exponent = static_cast<int>(__float_as_uint(amax) >> 23) - 127;
  const int shift = 14 - (exponent < -100 ? -100 : exponent > 126 ? 126 : exponent);
  out.scale = __uint_as_float(static_cast<uint32_t>(127 - shift) << 23);
  const float up = __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
  float x[4] = {v.x * up, v.y * up, v.z * up, v.w * up};
#pragma unroll
  for (int term = 0; term < operand_terms(kOperand); ++term) {
    __half h[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      h[i] = __float2half_rn(x[i]);
      x[i] = finite_rest(x[i], __half2float(h[i]));
    }
    out.term[term] = {static_cast<uint32_t>(__half_as_ushort(h[0])) | static_cast<uint32_t>(__half_as_ushort(h[1])) << 16,
                      static_cast<uint32_t>(__half_as_ushort(h[2])) | static_cast<uint32_t>(__half_as_ushort(h[3])) << 16};
  }
  return out;
}

// The first term as bfloat16 with its scale in it: exact for kE4M3 and kBf16.
__device__ inline uint2 folded_bf16(const ActivationBlock& block) {
  const uint32_t halves[2] = {block.term[0].x, block.term[0].y};
  uint32_t out[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float2 v;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(v.x), "=f"(v.y) : "r"(halves[i]));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out[i]) : "f"(v.y * block.scale), "f"(v.x * block.scale));
  }
  return {out[0], out[1]};
}

__device__ inline ActivationBlock activation_block(Operand operand, float4 v) {
  if (operand == Operand::kE4M3) return activation_block<Operand::kE4M3>(v);
  if (operand == Operand::kBf16) return activation_block<Operand::kBf16>(v);
  if (operand == Operand::kF16x2) return activation_block<Operand::kF16x2>(v);
  return activation_block<Operand::kBf16x3>(v);
}

}  // namespace dsv4::gpu
