// Synthetic tensors made on the device (tensor/synthetic_word.h).
#pragma once

#include "backends/gpu/gpu_context.h"
#include "tensor/synthetic_word.h"

namespace dsv4::gpu {

// Bytes [first_byte, first_byte + size_bytes) of the tensor go to `out`, 8-byte aligned device memory; first_byte is a multiple of 8.
Status generate_words(GpuContext& context, const SyntheticRule& rule, int64_t first_byte, int64_t size_bytes, uint8_t* out);

}  // namespace dsv4::gpu
