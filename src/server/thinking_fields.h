// Whether the model thinks first, and how hard: several clients' ways to say it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/field_reader.h"

namespace dsv4 {

struct ThinkingRules {
  bool by_default = false;                // when a request says nothing
  std::vector<std::string> effort_names;  // the model's, e.g. low, high, max
  std::string default_effort;
};

struct ThinkingChoice {
  bool thinking = false;
  std::string effort;  // one of effort_names, or empty
};

// Reads chat_template_kwargs {"thinking", "enable_thinking", "reasoning_effort"}, enable_thinking, thinking {"type"} and
// reasoning_effort. Ways that contradict each other are a fault.
ThinkingChoice read_thinking(FieldReader& fields, const ThinkingRules& rules);

// A client's effort word as the model's: "none" and "minimal" = no thinking; a word the model has, itself; "medium" = the model's
// default; "xhigh" = its strongest. Empty for other words.
std::optional<ThinkingChoice> effort_choice(const std::string& word, const ThinkingRules& rules);

}  // namespace dsv4
