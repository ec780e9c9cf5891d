// Where the commands' devices come from: the registry. Not in the commands' library: a test program brings its own, which plants faults.
#pragma once

#include <memory>

#include "backends/registry.h"

namespace dsv4 {

Result<std::unique_ptr<Device>> open_device(const DeviceOptions& options);

}  // namespace dsv4
