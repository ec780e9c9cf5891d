// The only place that knows which backends this build has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/device.h"

namespace dsv4 {

struct DeviceOptions {
  std::string backend = "auto";  // "auto" (the fastest that is present), "reference", "cpu", "gpu"
  int num_threads = 0;           // host backends; 0 = one per available core
  bool pin_threads = false;
  std::string isa = {};               // cpu: force "scalar", "avx2", "avx512"; empty = best the machine has
  bool huge_pages = false;       // cpu: ask for 2 MiB pages behind device buffers
  std::string numa = {};         // cpu: "interleave" memory over all NUMA nodes, or the number of the node to take it from
  int gpu_index = 0;
};

// Errors: kInvalidArgument for an unknown name, kUnsupported with the reason when this build or machine lacks the backend.
Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options);

// Every backend name and whether it can run here: {"gpu", "no: libcuda.so.1 is not installed"}.
struct BackendStatus {
  std::string name;
  std::string state;  // "yes" or "no: reason"
};
std::vector<BackendStatus> backend_statuses();

}  // namespace dsv4
