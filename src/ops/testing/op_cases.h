// The shared operator test: every operator of OpTable, with named cases, run on any device and judged against values computed in
// double straight from the operator's definition. Each run also checks the promises of op.h (bitwise repeatable, a row alone equals the
// row in the batch, parts of a batch leave the same bytes, nothing outside the results is written) and that the judge itself refuses
// damaged results. Independent of gtest; op_suite.h wraps it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/device.h"

namespace dsv4 {

namespace optest {
class Problem;
}

struct OpCase {
  std::string op;    // slot of OpTable: "rms_norm"
  std::string name;  // why the case exists: "strided_rows"
  // Shapes no model has: a device may answer kUnsupported with a reason.
  bool may_be_unsupported = false;
  std::function<std::unique_ptr<optest::Problem>(uint64_t seed)> build;

  std::string full_name() const { return op + "/" + name; }
};

struct RunOptions {
  uint64_t seed = 1;
  bool controls = true;                 // negative controls of the judge
  bool promises = true;                 // repeat, row alone, parts
  bool same_bits_as_reference = false;  // the device claims the reference's very bits
};

enum class CaseOutcome : uint8_t { kPassed, kFailed, kUnsupported };

struct CaseReport {
  std::string op;
  std::string name;
  uint64_t seed = 0;
  CaseOutcome outcome = CaseOutcome::kPassed;
  std::vector<std::string> reasons;  // of a failure, or the device's reason for kUnsupported
  int64_t compared = 0;              // elements
  double worst_ratio = 0;            // largest difference / bound
  double relative_l2 = 0;
  int64_t flips = 0;  // elements rounded to the other side than the reference's
  int controls_refused = 0;
  int controls_not_applicable = 0;
  double seconds = 0;
};

// Grouped by operator. Names are unique within an operator.
std::vector<OpCase> all_op_cases();

// True when the slot `op` of the table is filled.
bool has_op(const OpTable& table, const std::string& op);

CaseReport run_op_case(const OpCase& op_case, Device& tested, Device& reference, const RunOptions& options);

// One line per report: operator, case, outcome, elements, worst ratio, relative L2, flips, controls, seconds; then a summary line.
std::string report_table(const std::vector<CaseReport>& reports);

}  // namespace dsv4
