// JSON numbers within bounds, as grammars.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/constraint/grammar.h"

namespace dsv4 {

// A bound as it stands in a schema: a decimal without exponent, at most 15 digits before and after the point.
struct DecimalBound {
  bool negative = false;
  std::string whole = "0", fraction;  // digits; no leading zeros in `whole`, no trailing ones in `fraction`
  bool exclusive = false;

  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

// From a JSON number's text, e.g. "-1.50", "2e3". Empty when it needs more digits than that.
std::optional<DecimalBound> read_bound(const std::string& number, bool exclusive);

struct NumberRange {
  std::optional<DecimalBound> low, high;
  int fraction_digits = 15;  // at most so many; 0 = integers
};

// Without bounds: up to 18 digits, a fraction (and an exponent unless fraction_digits is set lower). With bounds: no exponent. Empty
// when no number is in the range.
std::optional<GrammarNode> number_grammar(Grammar& g, const NumberRange& range);

}  // namespace dsv4
