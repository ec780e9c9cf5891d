// What this machine can do at most, measured the plain way: the denominators of the CPU backend's numbers.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct MachinePeaks {
  double read_bytes_per_second = 0;  // all threads read a buffer far larger than L3, as one stream each or as four, whichever is faster
  double flops_per_second = 0;       // all threads, fma on registers, with the context's instruction set
};

// `context` is that of a CPU device. Takes about 2 * seconds; the best of the runs that fit counts.
Result<MachinePeaks> measure_machine_peaks(OpContext& context, double seconds);

}  // namespace dsv4
