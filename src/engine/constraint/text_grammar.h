// Characters and strings in grammars: inside JSON quotes (escaped) or raw.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/constraint/grammar.h"

namespace dsv4 {

enum class TextForm { kJson, kRaw };  // between JSON quotes; as it is

// All code points; those that a raw value may hold where only short bounded text is possible (no "<", so no markup can arise).
const Grammar::CodePoints& any_code_point();

// One character out of `ranges`, in the given form. JSON: quote, backslash and controls as their escapes; other characters as
// themselves and, when `ranges` is everything, also as \u escapes.
GrammarNode character(Grammar& g, TextForm form, const Grammar::CodePoints& ranges);

// `text` as it must be written in the form (without quotes).
std::string spelled(TextForm form, std::string_view text);

// A JSON string's inside that is none of `names` (and, so that no escape can spell one, has no backslash).
GrammarNode json_text_except(Grammar& g, const std::vector<std::string>& names);

// Raw text that does not hold `end`, then `end`.
GrammarNode text_up_to(Grammar& g, std::string_view end);

// A regular expression of JSON schema ("pattern", unanchored) as text in the form. Error: kUnsupported for what is no regular
// language or not known here (look-around, back references, \b), kInvalidArgument for bad syntax.
Result<GrammarNode> pattern_grammar(Grammar& g, TextForm form, std::string_view pattern);

}  // namespace dsv4
