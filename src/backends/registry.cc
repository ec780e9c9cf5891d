#include "backends/registry.h"

#include "backends/cpu/cpu_device.h"
#ifndef DSV4_HAVE_GPU
#define DSV4_HAVE_GPU 0
#endif
#if DSV4_HAVE_GPU
#include "backends/gpu/gpu_device.h"
#endif

namespace dsv4 {
namespace {

// Empty when a GPU can be used.
std::string why_no_gpu() {
#if DSV4_HAVE_GPU
  return gpu_unavailable_reason();
#else
  return "this build has no GPU backend (DSV4_CUDA)";
#endif
}

Result<std::unique_ptr<Device>> make_gpu(const DeviceOptions& options) {
#if DSV4_HAVE_GPU
  return make_gpu_device({.index = options.gpu_index});
#else
  (void)options;
  return unsupported("backend gpu: " + why_no_gpu());
#endif
}

Result<std::unique_ptr<Device>> make_cpu(const DeviceOptions& o) {
  return make_cpu_device({.num_threads = o.num_threads,
                          .pin_threads = o.pin_threads,
                          .isa = o.isa,
                          .huge_pages = o.huge_pages,
                          .numa = o.numa});
}

}  // namespace

Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options) {
  if (options.backend == "reference") return make_reference_device(options.num_threads);
  if (options.backend == "cpu") return make_cpu(options);
  if (options.backend == "gpu") return make_gpu(options);
  if (options.backend == "auto") return why_no_gpu().empty() ? make_gpu(options) : make_cpu(options);
  return invalid_argument("backend '" + options.backend + "' is unknown; auto, reference, cpu and gpu exist");
}

std::vector<BackendStatus> backend_statuses() {
  const std::string gpu = why_no_gpu();
  return {{"reference", "yes"}, {"cpu", "yes"}, {"gpu", gpu.empty() ? "yes" : "no: " + gpu}};
}

}  // namespace dsv4
