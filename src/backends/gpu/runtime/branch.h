// One stream's work made to wait for another's; in a capture this is what makes a graph branch.
#pragma once

#include "backends/gpu/runtime/runtime.h"

namespace dsv4::gpu {

// What is queued on `stream` from now on waits for what `event` was last recorded after.
Status wait_on_stream(Stream stream, Event event);

}  // namespace dsv4::gpu
