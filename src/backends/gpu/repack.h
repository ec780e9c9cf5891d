// The device's repacking of a row-major weight into strips (weight_layout.h).
#pragma once

#include "backends/gpu/gpu_context.h"
#include "tensor/weight.h"

namespace dsv4::gpu {

// `source` is row-major in device memory and fits strips. fp8_block scales are not touched: they stay as they are.
Status repack_strips(GpuContext& context, const WeightView& source, uint8_t* data, uint8_t* scale);

}  // namespace dsv4::gpu
