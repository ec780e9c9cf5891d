#include "open_device.h"

namespace dsv4 {

Result<std::unique_ptr<Device>> open_device(const DeviceOptions& options) { return make_device(options); }

}  // namespace dsv4
