// Runs a problem on a device: places every tensor between guard bands, calls the operator, downloads everything, and reports each byte
// that changed and must not have.
#pragma once

#include <string>
#include <vector>

#include "ops/testing/problem.h"

namespace dsv4::optest {

class Executor {
 public:
  // Places the weights, as a model load does. Both must outlive this.
  Executor(const Problem& problem, Device& device);

  // Error of the placement; nothing runs unless it is ok.
  const Status& placement() const { return placement_; }

  // Calls the operator on rows [range): its per-row tensors hold just these rows. Outputs start as `fill` words. Results are merged
  // into `images`; bytes written outside the results are described in `violations`.
  Status run(RowRange range, uint32_t fill, Images& images, std::vector<std::string>& violations);

  // The parts one after the other, each on the memory that the one before it left.
  Status run_parts(const std::vector<RowRange>& parts, uint32_t fill, Images& images, std::vector<std::string>& violations);

  const std::vector<WeightView>& placed() const { return placed_; }

 private:
  const Problem& problem_;
  Device& device_;
  Status placement_;
  std::vector<WeightView> placed_;
  std::vector<DeviceBuffer> storage_;
};

}  // namespace dsv4::optest
