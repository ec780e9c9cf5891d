// The one place that names a vendor's runtime: CUDA, or HIP when hipcc compiles. Everything above uses the gpu* names below. Included by
// runtime/ and, through kernel.h, by kernel sources only.
#pragma once

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#define DSV4_GPU_NAME(name) hip##name
#else
#include <cuda_runtime.h>
#define DSV4_GPU_NAME(name) cuda##name
#endif

namespace dsv4::gpu {

using VendorError = DSV4_GPU_NAME(Error_t);
using VendorStream = DSV4_GPU_NAME(Stream_t);
using VendorEvent = DSV4_GPU_NAME(Event_t);
using VendorGraph = DSV4_GPU_NAME(Graph_t);
using VendorGraphExec = DSV4_GPU_NAME(GraphExec_t);
inline constexpr VendorError kVendorSuccess = DSV4_GPU_NAME(Success);

}  // namespace dsv4::gpu
