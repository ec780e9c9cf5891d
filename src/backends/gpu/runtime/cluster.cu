#include "backends/gpu/runtime/cluster.h"

#include <string>

#include "backends/gpu/runtime/vendor.h"

namespace dsv4::gpu {

Status allow_large_clusters(const void* kernel) {
#if defined(__HIP__)
  (void)kernel;
  return unsupported("gpu: this vendor's devices have no clusters");
#else
  const VendorError error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  return error == kVendorSuccess ? ok_status() : device_error(std::string("gpu: allowing large clusters: ") + cudaGetErrorString(error));
#endif
}

}  // namespace dsv4::gpu
