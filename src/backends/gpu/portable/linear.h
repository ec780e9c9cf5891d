// Shared by the portable products.
#pragma once

#include "backends/gpu/portable/codec.h"
#include "ops/linear.h"
#include "tensor/rounding.h"

namespace dsv4::gpu {

// out [rows, cols] = x through a rounding that is not kNone; for kE4M3 cols is a multiple of 128.
Status round_activations(GpuContext& gpu, ActivationRounding rounding, Rows<const float> x, int64_t rows, int64_t cols, float* out);

}  // namespace dsv4::gpu
