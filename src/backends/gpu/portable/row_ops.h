// Pieces of row operators, on rows in shared memory.
#pragma once

#include "backends/gpu/portable/codec.h"

namespace dsv4::gpu {

// row <- weight * row / sqrt(mean(row^2) + eps). All threads call after a barrier; a barrier follows. `scratch`: block_sum's.
__device__ inline void norm_row(float* row, const uint16_t* weight, int dim, float eps, float* scratch) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x)) sum += row[i] * row[i];
  const float root = sqrtf(block_sum(sum, scratch) / static_cast<float>(dim) + eps);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x)) row[i] = decode_bf16(weight[i]) * (row[i] / root);
  __syncthreads();
}

// rms_norm of a row of global memory, as its kernels share it: a thread of kRmsThreads holds the values threadIdx.x + i * kRmsThreads.
inline constexpr int kRmsThreads = 256;
inline constexpr int kRmsHeld = 8;
// The root of a row of at most kRmsThreads * kRmsHeld values. All threads call; barriers inside.
__device__ inline float rms_root(const float (&held)[kRmsHeld], float rest, int64_t dim, float eps, float* scratch) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRmsHeld; ++i) sum = __fmaf_rn(held[i], held[i], sum);
  return __fsqrt_rn(__fadd_rn(__fdiv_rn(block_sum(__fadd_rn(sum, rest), scratch), static_cast<float>(dim)), eps));
}
__device__ inline float rms_value(float x, float root, uint16_t weight) { return __fmul_rn(decode_bf16(weight), __fdiv_rn(x, root)); }

// Rotates interleaved pairs; sign -1 inverts. A barrier follows.
__device__ inline void rotate_row(float* x, const float* cos_sin, int rope_dim) {
  for (int i = 2 * static_cast<int>(threadIdx.x); i < rope_dim; i += 2 * static_cast<int>(blockDim.x)) {
    const float a = x[i], b = x[i + 1], c = cos_sin[i], s = cos_sin[i + 1];
    x[i] = a * c - b * s;
    x[i + 1] = a * s + b * c;
  }
  __syncthreads();
}

// x <- H x * n^-0.5, n a power of two: butterflies from stride 1 up, then the scale. A barrier follows.
__device__ inline void hadamard_row(float* x, int n) {
  for (int stride = 1; stride < n; stride *= 2) {
    for (int b = static_cast<int>(threadIdx.x); b < n / 2; b += static_cast<int>(blockDim.x)) {
      const int i = b / stride * 2 * stride + b % stride;
      const float a0 = x[i], a1 = x[i + stride];
      x[i] = a0 + a1;
      x[i + stride] = a0 - a1;
    }
    __syncthreads();
  }
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(n)));
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) x[i] *= scale;
  __syncthreads();
}

}  // namespace dsv4::gpu
