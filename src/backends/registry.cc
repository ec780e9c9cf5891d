#include "backends/registry.h"

#include "backends/cpu/cpu_device.h"
#ifndef DSV4_HAVE_GPU
#define DSV4_HAVE_GPU 0
#endif
#if DSV4_HAVE_GPU
#include "backends/gpu/gpu_device.h"
#include "backends/gpu/kernel_plan.h"
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
  return make_cpu_device({.num_threads = o.num_threads, .pin_threads = o.pin_threads, .isa = o.isa, .huge_pages = o.huge_pages, .numa = o.numa});
}

}  // namespace

Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options) {
  if (options.backend == "reference") return make_reference_device(options.num_threads);
  if (options.backend == "cpu") return make_cpu(options);
  if (options.backend == "gpu") return make_gpu(options);
  if (options.backend == "auto") return why_no_gpu().empty() ? make_gpu(options) : make_cpu(options);
  return invalid_argument("backend '" + options.backend + "' is unknown; auto, reference, cpu and gpu exist");
}

Result<PlannedKernel> plan_kernel(const std::string& backend, const PlannedProduct& p, int64_t rows) {
  if (backend == "gpu") {
#if DSV4_HAVE_GPU
    constexpr int kHopperMultiprocessors = 132;
    const gpu::ProductShape shape{rows, p.n, p.k, p.format, p.rounding};
    const bool strips = gpu::fits_strips(p.format, p.n, p.k);
    return PlannedKernel{strips ? "strips" : "row-major",
                         p.experts > 0 ? gpu::describe_experts(shape, true) : gpu::describe_plan(shape, true, kHopperMultiprocessors)};
#else
    (void)p, (void)rows;
    return unsupported("backend gpu: " + why_no_gpu());
#endif
  }
  if (backend == "cpu" || backend == "reference") return unsupported("backend " + backend + " has no kernel plan: it takes one kernel for every product");
  return invalid_argument("backend '" + backend + "' is unknown; plans are of gpu");
}

std::vector<BackendStatus> backend_statuses() {
  const std::string gpu = why_no_gpu();
  return {{"reference", "yes"}, {"cpu", "yes"}, {"gpu", gpu.empty() ? "yes" : "no: " + gpu}};
}

}  // namespace dsv4
