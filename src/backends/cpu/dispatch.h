// From an instruction set to the entry of Highway's per-function tables. Each kernel file is compiled once per target
// (hwy/foreach_target.h) and its HWY_EXPORT table holds one pointer per target; a device asks for the pointer of the set it was made
// for, so two devices with different sets live in one process.
#pragma once

#include <cstddef>

#include "backends/cpu/cpu_isa.h"
#include "hwy/highway.h"

namespace dsv4 {

size_t dispatch_index(CpuIsa isa);

}  // namespace dsv4

#define DSV4_CPU_KERNEL(FUNCTION, isa) HWY_DISPATCH_TABLE(FUNCTION)[::dsv4::dispatch_index(isa)]
