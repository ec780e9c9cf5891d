// The three roundings of the "qat" arithmetic: activations before FP8 and MXFP4 products, cache rows, indexer rows. Each block
// of `group` values shares a power-of-two scale:
//   E4M3: s = 2^ceil(log2(max(amax, 1e-4) / 448)), value = e4m3(x / s) * s
//   E2M1: s = 2^ceil(log2(max(amax, 6 * 2^-126) / 6)), value = e2m1(x / s) * s
// The quotient by 448 (by 6) is a float32 product with the rounded reciprocal, as the checkpoint's reference computes it.
#pragma once

#include <cstdint>

namespace dsv4 {

inline constexpr int64_t kActivationGroup = 128;  // values of K per scale, before a product
inline constexpr int64_t kIndexGroup = 32;        // values per scale in indexer rows

// E8M0 code of the scale of n values.
uint8_t e4m3_scale_code(const float* x, int64_t n);
uint8_t e2m1_scale_code(const float* x, int64_t n);

// out[i] = rounded x[i], n a multiple of group; out may be x.
void round_e4m3(const float* x, int64_t n, int64_t group, float* out);
void round_e2m1(const float* x, int64_t n, int64_t group, float* out);
// out[i] = bf16(x[i]).
void round_bf16(const float* x, int64_t n, float* out);

}  // namespace dsv4
