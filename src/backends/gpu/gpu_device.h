// The GPU as a Device.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "ops/device.h"

namespace dsv4 {

struct GpuDeviceOptions {
  int index = 0;
  bool portable_only = false;  // row-major weights and the kernels of portable/, whatever the card
  bool branches = true;        // captured steps run independent groups of operators side by side
};

// Errors: kUnsupported with the reason when no GPU answers, kInvalidArgument for an index beyond the last one.
Result<std::unique_ptr<Device>> make_gpu_device(const GpuDeviceOptions& options);

// Why no GPU can be used here; empty when one can.
std::string gpu_unavailable_reason();

// A host thread's profile of a stream needs the stream: kernels launched so far and scratch held, for reports.
struct GpuUsage {
  int64_t kernels_launched = 0;
  int64_t scratch_bytes = 0;
};
GpuUsage gpu_usage(Device& device);

}  // namespace dsv4
