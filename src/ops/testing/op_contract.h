// The shared operator test as a program, without gtest: a table of cases, for people and scripts.
#pragma once

#include <functional>

#include "ops/testing/op_cases.h"

namespace dsv4 {

// Flags: --filter=TEXT (cases whose "op/name" contains it), --seed=N, --list, --no-controls, --no-promises, --same-bits. Prints the table.
// Returns the exit code: 0 all passed, 1 a case failed, none matched or `factory` gave no device (a missing backend is not a pass), 2 a
// flag is wrong.
int run_op_contract(int argc, char** argv, const char* backend, const std::function<std::unique_ptr<Device>()>& factory);

}  // namespace dsv4
