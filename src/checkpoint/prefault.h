// Reads every byte of a checkpoint once, so that later use never waits for the disk, and checks the values on the way.
#pragma once

#include <string>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/tensor_entry.h"

namespace dsv4 {

// Byte codes and numbers that no weight may hold: NaN scales (E8M0 255), NaN weights (E4M3 0x7f, 0xff), non-finite BF16 and F32.
// One fault for each tensor, naming the first bad element and how many there are. `progress` gets task "load".
void read_and_check_values(const std::vector<TensorEntry>& tensors, const ProgressSink& progress, FaultList* faults);

}  // namespace dsv4
