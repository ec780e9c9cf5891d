// Where a forward pass rounds, and how its products are made.
#pragma once

#include <optional>
#include <string_view>

#include "ops/op.h"

namespace dsv4 {

// All but kExact round cache rows (E4M3) and indexer rows (E2M1) as in training and serving. Before products with FP8 and MXFP4 weights, activations are
//   kQat        rounded to E4M3 per 128 values ("W8A8": how the model was trained and is served). The default.
//   kW8A16      rounded to BF16 instead.
//   kEmulation  rounded as in kQat, and products are made by the device's plain operators (Device::emulation_ops): weights stay packed, each value is
//               dequantized on use, and as BF16 holds both factors exactly this is the BF16 product with float32 sums. Slow; the oracle of the fast ones.
//   kExact      not rounded, like everything else: the oracle of the mathematics, over a float32 cache.
// Source: model.md section 9.
enum class Arithmetic : uint8_t { kQat, kW8A16, kEmulation, kExact };

const char* arithmetic_name(Arithmetic arithmetic);                 // "qat", "w8a16", "emulation", "exact"
std::optional<Arithmetic> arithmetic_named(std::string_view name);  // also "w8a8", which is qat
inline constexpr const char* kArithmeticNames = "qat (alias w8a8), w8a16, emulation or exact";

ActivationRounding activation_rounding(Arithmetic arithmetic);

}  // namespace dsv4
