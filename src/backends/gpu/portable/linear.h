// Shared by the portable products.
#pragma once

#include "backends/gpu/portable/codec.h"
#include "tensor/rounding.h"

namespace dsv4::gpu {

// out [rows, cols] = x through the per-128 E4M3 rounding; cols a multiple of 128.
Status round_activations(GpuContext& gpu, Rows<const float> x, int64_t rows, int64_t cols, float* out);

}  // namespace dsv4::gpu
