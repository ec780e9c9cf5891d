// Compares the tensors a checkpoint has with those its configuration calls for.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/tensor_entry.h"

namespace dsv4 {

struct TensorCheckInput {
  const ModelConfig& config;
  const std::vector<ExpectedTensor>& expected;
  const std::vector<TensorEntry>& tensors;  // sorted by name
  const std::set<std::string>& accounted;   // absent names whose fault is told already
  std::string source;                       // the file that lists the tensors, for absent ones
};

// Wrong dtypes and shapes first, then missing tensors: a whole missing layer or expert is one line. Tensors outside the table
// (draft blocks aside) are warnings, a line for each layer or expert likewise.
void check_tensors(const TensorCheckInput& input, FaultList* faults, FaultList* warnings);

}  // namespace dsv4
