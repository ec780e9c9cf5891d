#include "backends/gpu/runtime/branch.h"

#include "backends/gpu/runtime/vendor.h"

namespace dsv4::gpu {

Status wait_on_stream(Stream stream, Event event) {
  const VendorError error = DSV4_GPU_NAME(StreamWaitEvent)(reinterpret_cast<VendorStream>(stream), reinterpret_cast<VendorEvent>(event), 0);
  return error == kVendorSuccess ? ok_status() : device_error(std::string("gpu: joining streams: ") + DSV4_GPU_NAME(GetErrorString)(error));
}

}  // namespace dsv4::gpu
