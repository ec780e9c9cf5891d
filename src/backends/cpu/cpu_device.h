// The CPU device: host memory, the kernels of one instruction set, a pool of threads.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "ops/device.h"

namespace dsv4 {

struct CpuDeviceOptions {
  int num_threads = 0;       // 0 = one per available core
  bool pin_threads = false;  // thread i on the i-th core of the process's affinity mask
  std::string isa;           // "scalar", "avx2", "avx512"; empty = the best this machine has
  bool huge_pages = false;   // ask the kernel for 2 MiB pages behind device buffers (madvise)
  std::string numa;          // set_numa_policy(): "", "interleave" or a node's number; of the calling thread and the pool
};

Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options);

}  // namespace dsv4
