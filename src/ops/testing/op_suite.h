// The shared operator test as gtest cases of a backend's test program: one test per case, "BACKEND/OP.CASE".
#pragma once

#include <functional>

#include "ops/testing/op_cases.h"

namespace dsv4 {

// Registers every case. `factory` is called once, when the first test runs; the device lives until the program ends. It may return
// null with a reason: then every test fails with it, for a missing backend is not a pass. Call before RUN_ALL_TESTS (a static
// initializer will do). The seed is gtest's own flag: --gtest_random_seed=N replays what a failure prints; without it, options.seed.
void register_op_suite(const char* backend, std::function<Device*()> factory, const RunOptions& options = {});

}  // namespace dsv4
