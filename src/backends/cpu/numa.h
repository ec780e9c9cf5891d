// Where the pages of this process go on machines of several NUMA nodes: weights read from the page cache, buffers, everything touched
// later by the calling thread and the threads it starts.
#pragma once

#include <string>

#include "base/status.h"

namespace dsv4 {

// "" leaves the system's rule (the node of the core that touches a page first), "interleave" takes all nodes in turn, "N" binds to node N.
// Pages that are already in memory stay where they are. Errors: kInvalidArgument for another text or a node that is not there,
// kUnsupported when the kernel refuses.
Status set_numa_policy(const std::string& policy);

}  // namespace dsv4
