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
  std::string isa = {};     // cpu: force "scalar", "avx2", "avx512"; empty = best the machine has
  bool huge_pages = false;  // cpu: ask for 2 MiB pages behind device buffers
  std::string numa = {};    // cpu: "interleave" memory over all NUMA nodes, or the number of the node to take it from
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

// A product of the forward pass as a backend's kernel plan sees it.
struct PlannedProduct {
  int64_t n = 0, k = 0;
  WeightFormat format = WeightFormat::kF32;
  ActivationRounding rounding = ActivationRounding::kNone;
  int64_t experts = 0;  // above 0: routed experts of this size
};
struct PlannedKernel {
  std::string layout;  // how the weight lies on the device: "row-major", or what it is reordered to once, at load
  std::string kernel;  // "M=1 N=32768 K=1024 fp8_block e4m3: row_strip, 1 term, 264 blocks"
};
// What `backend` would take for `rows` rows; needs no device ("gpu" plans for a Hopper card of 132 multiprocessors). kUnsupported with the reason
// for backends that have no plan, or that this build lacks.
Result<PlannedKernel> plan_kernel(const std::string& backend, const PlannedProduct& product, int64_t rows);

}  // namespace dsv4
