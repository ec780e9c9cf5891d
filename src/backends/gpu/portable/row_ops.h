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
