// The lines that triage knows: substrings seen in the field, and what they mean.
#pragma once

#include <string_view>
#include <vector>

#include "verify/triage.h"

namespace dsv4 {

struct LogPattern {
  std::string_view needle;
  LogKind kind;
  LogStage stage;  // kNone: wherever the run was
  std::string_view meaning;
};

// In the order in which a line is tried; the first that is contained wins.
const std::vector<LogPattern>& log_patterns();

// Null when the line says nothing.
const LogPattern* match_line(std::string_view line);

}  // namespace dsv4
