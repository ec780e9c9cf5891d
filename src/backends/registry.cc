#include "backends/registry.h"

namespace dsv4 {

Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options) {
  if (options.backend == "reference" || options.backend == "auto") return make_reference_device(options.num_threads);
  return invalid_argument("backend \"" + options.backend + "\" is not known; auto and reference are");
}

std::vector<BackendStatus> backend_statuses() { return {{"reference", "yes"}}; }

}  // namespace dsv4
