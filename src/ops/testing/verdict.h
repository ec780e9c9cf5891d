// What a judge found: how much it compared, the worst element, and the first reasons to refuse.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv4::optest {

struct Verdict {
  int64_t compared = 0;  // elements looked at
  int64_t refusals = 0;
  int64_t flips = 0;                 // elements that rounded the other way than the reference's
  double worst_ratio = 0;            // largest diff / bound (bounds of zero excluded)
  double relative_l2 = 0;            // largest over the outputs
  std::vector<std::string> reasons;  // the first few

  bool ok() const { return refusals == 0; }
  // `reason` makes the text, only for the first few.
  template <class Reason>
  void refuse(const Reason& reason) {
    ++refusals;
    if (reasons.size() < 4) reasons.push_back(reason());
  }
};

}  // namespace dsv4::optest
