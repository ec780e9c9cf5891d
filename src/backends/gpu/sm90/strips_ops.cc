#include "backends/gpu/gpu_ops.h"

namespace dsv4::gpu {

const OpTable* strips_ops() { return nullptr; }

}  // namespace dsv4::gpu
