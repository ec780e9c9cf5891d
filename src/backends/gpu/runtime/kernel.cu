#include "backends/gpu/runtime/kernel.h"

#include <string>

namespace dsv4::gpu {

Status launch_failed(VendorError error, const char* name) {
  (void)DSV4_GPU_NAME(GetLastError)();
  return device_error(std::string("gpu: launching ") + name + ": " + DSV4_GPU_NAME(GetErrorString)(error));
}

}  // namespace dsv4::gpu
