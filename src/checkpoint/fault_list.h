// Faults of one directory, gathered so that the first report lists them all.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace dsv4 {

inline constexpr size_t kMaxFaultLines = 50;  // a report longer than a screen hides its first lines; the rest is counted

class FaultList {
 public:
  // "file: tensor: what was expected, what was found". Control characters become '?'; a line of more than 600 bytes is cut.
  void add(const std::string& line);

  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  const std::vector<std::string>& lines() const { return lines_; }  // at most kMaxFaultLines

  // "WHAT: N faults" and an indented line for each; ok when there are none.
  Status to_status(StatusCode code, const std::string& what) const;

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

// A name from a file, fit for a one-line message: control characters become '?', more than 120 bytes are cut.
std::string printable_name(const std::string& name);

}  // namespace dsv4
