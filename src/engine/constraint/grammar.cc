#include "engine/constraint/grammar.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxNodes = 400000;
constexpr uint32_t kLastCodePoint = 0x10FFFF;

std::string utf8_of(uint32_t code_point) {
  std::string out;
  append_utf8(code_point, &out);
  return out;
}

ByteSet byte_range(unsigned char low, unsigned char high) {
  ByteSet out;
  for (int b = low; b <= high; ++b) out.set(static_cast<size_t>(b));
  return out;
}

}  // namespace

GrammarNode Grammar::add(Node node) {
  nodes_.push_back(node);
  return static_cast<GrammarNode>(nodes_.size() - 1);
}

GrammarNode Grammar::bytes(const ByteSet& set) {
  sets_.push_back(set);
  return add({Kind::kBytes, static_cast<int32_t>(sets_.size() - 1), 0, 0, -1});
}

GrammarNode Grammar::literal(std::string text) {
  if (text.empty()) return sequence({});
  texts_.push_back(std::move(text));
  return add({Kind::kLiteral, static_cast<int32_t>(texts_.size() - 1), 0, 0, -1});
}

GrammarNode Grammar::sequence(std::vector<GrammarNode> parts) {
  if (parts.size() == 1) return parts[0];
  const int32_t first = static_cast<int32_t>(children_.size());
  children_.insert(children_.end(), parts.begin(), parts.end());
  return add({Kind::kSequence, first, static_cast<int32_t>(parts.size()), 0, -1});
}

GrammarNode Grammar::choice(std::vector<GrammarNode> options) {
  if (options.size() == 1) return options[0];
  const int32_t first = static_cast<int32_t>(children_.size());
  children_.insert(children_.end(), options.begin(), options.end());
  return add({Kind::kChoice, first, static_cast<int32_t>(options.size()), 0, -1});
}

GrammarNode Grammar::repeat(GrammarNode what, int32_t min, int32_t max) { return add({Kind::kRepeat, what, 1, min, max}); }

GrammarNode Grammar::rule() { return add({Kind::kRule, -1, 0, 0, -1}); }

void Grammar::define(GrammarNode rule, GrammarNode body) { nodes_[static_cast<size_t>(rule)].first = body; }

Grammar::CodePoints normalize(Grammar::CodePoints ranges) {
  std::sort(ranges.begin(), ranges.end());
  Grammar::CodePoints out;
  for (const auto& [low, high] : ranges) {
    if (low > high) continue;
    if (!out.empty() && low <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, high);
    } else {
      out.push_back({low, high});
    }
  }
  return out;
}

Grammar::CodePoints complement(const Grammar::CodePoints& ranges) {
  Grammar::CodePoints out;
  uint32_t next = 0;
  for (const auto& [low, high] : normalize(ranges)) {
    if (low > next) out.push_back({next, low - 1});
    next = high + 1;
  }
  if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
  return out;
}

Grammar::CodePoints intersect(const Grammar::CodePoints& a, const Grammar::CodePoints& b) {
  Grammar::CodePoints out;
  for (const auto& [al, ah] : normalize(a)) {
    for (const auto& [bl, bh] : normalize(b)) {
      if (std::max(al, bl) <= std::min(ah, bh)) out.push_back({std::max(al, bl), std::min(ah, bh)});
    }
  }
  return normalize(out);
}

// Cuts ranges until each is a product of byte ranges: first at the lengths of UTF-8, then wherever continuation bytes do not run
// through their whole range.
GrammarNode Grammar::code_point(const CodePoints& ranges) {
  std::vector<GrammarNode> options;
  ByteSet ascii;
  std::vector<std::pair<uint32_t, uint32_t>> work = intersect(ranges, {{0, 0xD7FF}, {0xE000, kLastCodePoint}});
  while (!work.empty()) {
    const auto [low, high] = work.back();
    work.pop_back();
    bool cut = false;
    for (const uint32_t limit : {0x7Fu, 0x7FFu, 0xFFFFu}) {
      if (low <= limit && high > limit) {
        work.push_back({low, limit});
        work.push_back({limit + 1, high});
        cut = true;
        break;
      }
    }
    if (cut) continue;
    if (high <= 0x7F) {
      ascii |= byte_range(static_cast<unsigned char>(low), static_cast<unsigned char>(high));
      continue;
    }
    for (int bits = 6; bits <= 18 && !cut; bits += 6) {
      const uint32_t mask = (1u << bits) - 1;
      if ((low & ~mask) == (high & ~mask)) break;
      if ((low & mask) != 0) {
        work.push_back({low, low | mask});
        work.push_back({(low | mask) + 1, high});
        cut = true;
      } else if ((high & mask) != mask) {
        work.push_back({low, (high & ~mask) - 1});
        work.push_back({high & ~mask, high});
        cut = true;
      }
    }
    if (cut) continue;
    const std::string from = utf8_of(low), to = utf8_of(high);
    std::vector<GrammarNode> parts;
    for (size_t i = 0; i < from.size(); ++i) parts.push_back(bytes(byte_range(static_cast<unsigned char>(from[i]), static_cast<unsigned char>(to[i]))));
    options.push_back(sequence(std::move(parts)));
  }
  if (ascii.any()) options.push_back(bytes(ascii));
  if (options.empty()) options.push_back(bytes(ByteSet()));  // nothing matches
  return choice(std::move(options));
}

std::vector<char> Grammar::productive() const {
  std::vector<char> out(nodes_.size(), 0);
  const auto is = [&](GrammarNode id) { return out[static_cast<size_t>(id)] != 0; };
  for (bool changed = true; changed;) {  // grows to a fixed point; children mostly lie before their parents
    changed = false;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (out[i] != 0) continue;
      const Node& n = nodes_[i];
      bool now = false;
      switch (n.kind) {
        case Kind::kBytes: now = byte_set(n).any(); break;
        case Kind::kLiteral: now = true; break;
        case Kind::kSequence:
          now = true;
          for (int32_t c = 0; c < n.count; ++c) now &= is(child(n, c));
          break;
        case Kind::kChoice:
          for (int32_t c = 0; c < n.count; ++c) now |= is(child(n, c));
          break;
        case Kind::kRepeat: now = n.min == 0 || is(n.first); break;
        case Kind::kRule: now = n.first >= 0 && is(n.first); break;
      }
      if (now) out[i] = changed = true;
    }
  }
  return out;
}

Status Grammar::check(GrammarNode root) const {
  if (nodes_.size() > kMaxNodes)
    return unsupported("the schema is too large: its grammar has " + std::to_string(nodes_.size()) + " nodes, the limit is " + std::to_string(kMaxNodes));
  std::vector<char> reached(nodes_.size(), 0);
  std::vector<GrammarNode> work = {root};
  reached[static_cast<size_t>(root)] = 1;
  while (!work.empty()) {
    const Node& n = node(work.back());
    work.pop_back();
    const auto reach = [&](GrammarNode id) {
      if (std::exchange(reached[static_cast<size_t>(id)], 1) == 0) work.push_back(id);
    };
    if (n.kind == Kind::kSequence || n.kind == Kind::kChoice) {
      for (int32_t c = 0; c < n.count; ++c) reach(child(n, c));
    } else if (n.kind == Kind::kRepeat || n.kind == Kind::kRule) {
      if (n.first < 0) return unsupported("the schema refers to something that no value satisfies");
      reach(n.first);
    }
  }
  // Which nodes can be empty: grows to a fixed point.
  std::vector<char> nullable(nodes_.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nullable[i] != 0) continue;
      const Node& n = nodes_[i];
      bool now = false;
      switch (n.kind) {
        case Kind::kBytes:
        case Kind::kLiteral: break;
        case Kind::kSequence:
          now = true;
          for (int32_t c = 0; c < n.count; ++c) now &= nullable[static_cast<size_t>(child(n, c))] != 0;
          break;
        case Kind::kChoice:
          for (int32_t c = 0; c < n.count; ++c) now |= nullable[static_cast<size_t>(child(n, c))] != 0;
          break;
        case Kind::kRepeat: now = n.min == 0 || nullable[static_cast<size_t>(n.first)] != 0; break;
        case Kind::kRule: now = n.first >= 0 && nullable[static_cast<size_t>(n.first)] != 0; break;
      }
      if (now) nullable[i] = changed = true;
    }
  }
  // A cycle among "may begin with": depth first, with the path's nodes marked 1 and finished ones 2.
  std::vector<char> mark(nodes_.size(), 0);
  std::vector<std::pair<GrammarNode, int32_t>> path = {{root, 0}};
  mark[static_cast<size_t>(root)] = 1;
  while (!path.empty()) {
    auto& [id, at] = path.back();
    const Node& n = node(id);
    GrammarNode next = -1;
    switch (n.kind) {
      case Kind::kBytes:
      case Kind::kLiteral: break;
      case Kind::kSequence:
        if (at < n.count && (at == 0 || nullable[static_cast<size_t>(child(n, at - 1))] != 0)) next = child(n, at);
        break;
      case Kind::kChoice:
        if (at < n.count) next = child(n, at);
        break;
      case Kind::kRepeat:
      case Kind::kRule:
        if (at == 0) next = n.first;
        break;
    }
    ++at;
    if (next < 0) {
      mark[static_cast<size_t>(id)] = 2;
      path.pop_back();
    } else if (mark[static_cast<size_t>(next)] == 1) {
      return unsupported("the schema refers to itself without anything in between");
    } else if (mark[static_cast<size_t>(next)] == 0) {
      mark[static_cast<size_t>(next)] = 1;
      path.push_back({next, 0});
    }
  }
  if (productive()[static_cast<size_t>(root)] == 0) return unsupported("no text satisfies the schema");
  return ok_status();
}

}  // namespace dsv4
