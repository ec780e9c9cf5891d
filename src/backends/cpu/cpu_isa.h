// The instruction sets the kernels are compiled for, and which of them this machine has. Every operator exists once per set and gives
// the same bits in each (docs/numerics.md).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dsv4 {

enum class CpuIsa : uint8_t { kScalar, kAvx2, kAvx512 };
inline constexpr CpuIsa kAllCpuIsas[] = {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512};

const char* cpu_isa_name(CpuIsa isa);  // "scalar", "avx2", "avx512"

// Compiled in and supported by this machine.
bool cpu_isa_available(CpuIsa isa);

// `forced` empty: the best available one. Errors: kInvalidArgument for an unknown name, kUnsupported when this machine lacks it.
Result<CpuIsa> choose_cpu_isa(const std::string& forced);

// "AMD EPYC 7763 64-Core Processor", from cpuid; "unknown CPU" where there is none.
std::string cpu_model_name();

}  // namespace dsv4
