// dsv4_faulty: the commands of dsv4 on a device with a planted fault, for docs/proof.md and by hand.
//
//     DSV4_FAULT=reader_stride dsv4_faulty probe
//     DSV4_FAULT=nan_in_cache_row DSV4_FAULT_POSITION=200 dsv4_faulty serve --validate
#include <cstdlib>
#include <string>

#include "backends/registry.h"
#include "faulty_device.h"

namespace dsv4 {

// In the place of apps/dsv4/open_device.cc.
Result<std::unique_ptr<Device>> open_device(const DeviceOptions& options) {
  const char* name = std::getenv("DSV4_FAULT");
  const std::optional<Fault> fault = fault_from_name(name == nullptr ? "none" : name);
  if (!fault) return invalid_argument("DSV4_FAULT is \"" + std::string(name) + "\", which is no fault of tests/verify/faulty_device.h");
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, make_device(options));
  // The reference that a command runs beside stays sound.
  if (*fault == Fault::kNone || options.backend == "reference") return device;
  FaultPlan plan{.fault = *fault};
  if (const char* position = std::getenv("DSV4_FAULT_POSITION"); position != nullptr) plan.position = std::atoi(position);
  return make_faulty_device(std::move(device), plan);
}

}  // namespace dsv4
