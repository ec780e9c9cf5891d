// A grammar over bytes: what a constrained answer may look like. Built once per request from a schema, then only read.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4 {

using GrammarNode = int32_t;
using ByteSet = std::bitset<256>;

class Grammar {
 public:
  enum class Kind : uint8_t { kBytes, kLiteral, kSequence, kChoice, kRepeat, kRule };
  struct Node {
    Kind kind = Kind::kSequence;
    int32_t first = 0, count = 0;  // kSequence, kChoice: children; kBytes, kLiteral: index in its pool (first)
    int32_t min = 0, max = -1;     // kRepeat: of child `first`; -1 = no limit. kRule: `first` = its definition
  };

  GrammarNode bytes(const ByteSet& set);  // one byte of the set
  GrammarNode literal(std::string text);  // "" is allowed: nothing
  GrammarNode sequence(std::vector<GrammarNode> parts);
  GrammarNode choice(std::vector<GrammarNode> options);  // at least one
  GrammarNode repeat(GrammarNode what, int32_t min, int32_t max = -1);
  GrammarNode optional(GrammarNode what) { return repeat(what, 0, 1); }
  GrammarNode rule();  // to be defined later: recursion goes through rules
  void define(GrammarNode rule, GrammarNode body);

  // One code point out of inclusive ranges, as UTF-8. Surrogates are left out.
  using CodePoints = std::vector<std::pair<uint32_t, uint32_t>>;
  GrammarNode code_point(const CodePoints& ranges);

  // For each node, whether any text matches it. What does not is left out of choices, so that no text runs into a dead end.
  std::vector<char> productive() const;

  // Some text matches, every rule is defined, no rule can begin with itself (it would never come to a byte), and the size is bearable. Error: kUnsupported.
  Status check(GrammarNode root) const;

  const Node& node(GrammarNode id) const { return nodes_[static_cast<size_t>(id)]; }
  GrammarNode child(const Node& n, int32_t i) const { return children_[static_cast<size_t>(n.first + i)]; }
  const ByteSet& byte_set(const Node& n) const { return sets_[static_cast<size_t>(n.first)]; }
  const std::string& text(const Node& n) const { return texts_[static_cast<size_t>(n.first)]; }
  size_t size() const { return nodes_.size(); }

 private:
  GrammarNode add(Node node);

  std::vector<Node> nodes_;
  std::vector<GrammarNode> children_;
  std::vector<ByteSet> sets_;
  std::vector<std::string> texts_;
};

// Ranges joined and sorted; and all other code points.
Grammar::CodePoints normalize(Grammar::CodePoints ranges);
Grammar::CodePoints complement(const Grammar::CodePoints& ranges);
Grammar::CodePoints intersect(const Grammar::CodePoints& a, const Grammar::CodePoints& b);

}  // namespace dsv4
