#include "engine/constraint/number_grammar.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <vector>

namespace dsv4 {
namespace {

constexpr int kMaxDigits = 15;

GrammarNode digits_between(Grammar& g, char low, char high) {
  ByteSet set;
  for (char c = low; c <= high; ++c) set.set(static_cast<unsigned char>(c));
  return g.bytes(set);
}

bool all_zero(const std::string& text, size_t from) { return from >= text.size() || text.find_first_not_of('0', from) == std::string::npos; }

// |a| against |b|: negative, zero, positive.
int compare_magnitudes(const DecimalBound& a, const DecimalBound& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int c = a.whole.compare(b.whole); c != 0) return c;
  return a.fraction.compare(b.fraction);  // without trailing zeros, the order of text is the order of value
}

// Numbers that are not negative, between two bounds (the upper one may be missing). The digits are chosen from the left; as long as
// they are those of a bound, that bound still limits the next digit ("tight").
class MagnitudeRange {
 public:
  MagnitudeRange(Grammar& g, const DecimalBound& low, const std::optional<DecimalBound>& high, int fraction_digits)
      : g_(g), low_(low), high_(high), max_fraction_(fraction_digits) {}

  std::optional<GrammarNode> make() {
    std::vector<GrammarNode> options;
    const size_t longest = high_ ? high_->whole.size() : static_cast<size_t>(kMaxDigits);
    for (size_t length = low_.whole.size(); length <= longest; ++length) {
      length_ = length;
      whole_memo_.clear();
      if (const auto n = whole(0, length == low_.whole.size(), high_ && length == high_->whole.size())) options.push_back(*n);
    }
    if (options.empty()) return std::nullopt;
    return g_.choice(std::move(options));
  }

 private:
  std::optional<GrammarNode> choose(std::vector<GrammarNode> options) {
    if (options.empty()) return std::nullopt;
    return g_.choice(std::move(options));
  }

  // Digit by digit: those strictly between the limits share one continuation, those on a limit have their own.
  template <class Next>
  std::optional<GrammarNode> digits(char from, char to, bool tight_low, bool tight_high, const Next& next) {
    std::vector<GrammarNode> options;
    const auto add = [&](char a, char b, bool tl, bool th) {
      if (a > b) return;
      if (const auto rest = next(tl, th)) options.push_back(g_.sequence({digits_between(g_, a, b), *rest}));
    };
    if (from > to) return std::nullopt;
    if (from == to && tight_low && tight_high) {
      add(from, to, true, true);
      return choose(std::move(options));
    }
    char inner_from = from, inner_to = to;
    if (tight_low) {
      add(from, from, true, tight_high && from == to);
      ++inner_from;
    }
    if (tight_high && (!tight_low || to != from)) {
      add(to, to, false, true);
      --inner_to;
    }
    add(inner_from, inner_to, false, false);
    return choose(std::move(options));
  }

  std::optional<GrammarNode> whole(size_t at, bool tight_low, bool tight_high) {
    if (at == length_) return point(tight_low, tight_high);
    const auto key = std::make_tuple(at, tight_low, tight_high);
    if (const auto known = whole_memo_.find(key); known != whole_memo_.end()) return known->second;
    const char least = at == 0 && length_ > 1 ? '1' : '0';
    const char from = tight_low ? low_.whole[at] : least, to = tight_high ? high_->whole[at] : '9';
    const auto made = digits(from, to, tight_low, tight_high, [&](bool tl, bool th) { return whole(at + 1, tl, th); });
    whole_memo_.emplace(key, made);
    return made;
  }

  bool may_stop(size_t at, bool tight_low, bool tight_high) const {
    if (tight_low && (!all_zero(low_.fraction, at) || low_.exclusive)) return false;
    if (tight_high && all_zero(high_->fraction, at) && high_->exclusive) return false;
    return true;
  }

  // Behind the whole digits: the end, or a point and at least one more digit.
  std::optional<GrammarNode> point(bool tight_low, bool tight_high) {
    std::vector<GrammarNode> options;
    if (may_stop(0, tight_low, tight_high)) options.push_back(g_.literal(""));
    if (max_fraction_ > 0) {
      if (const auto rest = fraction_digit(0, tight_low, tight_high)) options.push_back(g_.sequence({g_.literal("."), *rest}));
    }
    return choose(std::move(options));
  }

  std::optional<GrammarNode> fraction_digit(int at, bool tight_low, bool tight_high) {
    if (!tight_low && !tight_high) return g_.repeat(digits_between(g_, '0', '9'), 1, max_fraction_ - at);
    const auto key = std::make_tuple(static_cast<size_t>(at), tight_low, tight_high);
    if (const auto known = fraction_memo_.find(key); known != fraction_memo_.end()) return known->second;
    const size_t i = static_cast<size_t>(at);
    const auto digit_of = [&](const std::string& fraction) { return i < fraction.size() ? fraction[i] : '0'; };
    const auto made = digits(tight_low ? digit_of(low_.fraction) : '0', tight_high ? digit_of(high_->fraction) : '9', tight_low, tight_high,
                             [&](bool tl, bool th) { return fraction_rest(at + 1, tl, th); });
    fraction_memo_.emplace(key, made);
    return made;
  }

  std::optional<GrammarNode> fraction_rest(int at, bool tight_low, bool tight_high) {
    std::vector<GrammarNode> options;
    if (may_stop(static_cast<size_t>(at), tight_low, tight_high)) options.push_back(g_.literal(""));
    if (at < max_fraction_) {
      if (const auto more = fraction_digit(at, tight_low, tight_high)) options.push_back(*more);
    }
    return choose(std::move(options));
  }

  Grammar& g_;
  const DecimalBound low_;
  const std::optional<DecimalBound> high_;
  const int max_fraction_;
  size_t length_ = 0;
  std::map<std::tuple<size_t, bool, bool>, std::optional<GrammarNode>> whole_memo_, fraction_memo_;
};

GrammarNode unbounded(Grammar& g, int fraction_digits) {
  const GrammarNode digit = digits_between(g, '0', '9');
  std::vector<GrammarNode> parts = {g.optional(g.literal("-")), g.choice({g.literal("0"), g.sequence({digits_between(g, '1', '9'), g.repeat(digit, 0, 17)})})};
  if (fraction_digits > 0) parts.push_back(g.optional(g.sequence({g.literal("."), g.repeat(digit, 1, fraction_digits)})));
  if (fraction_digits >= kMaxDigits) {
    const GrammarNode sign = g.optional(g.choice({g.literal("+"), g.literal("-")}));
    // Two digits: within what a double holds, whatever stands before.
    parts.push_back(g.optional(g.sequence({g.choice({g.literal("e"), g.literal("E")}), sign, g.repeat(digit, 1, 2)})));
  }
  return g.sequence(std::move(parts));
}

}  // namespace

std::optional<DecimalBound> read_bound(const std::string& number, bool exclusive) {
  DecimalBound out;
  out.exclusive = exclusive;
  size_t at = 0;
  if (at < number.size() && number[at] == '-') {
    out.negative = true;
    ++at;
  }
  std::string digits;
  int point = 0;
  bool seen_point = false;
  for (; at < number.size() && (number[at] == '.' || (number[at] >= '0' && number[at] <= '9')); ++at) {
    if (number[at] == '.') {
      seen_point = true;
    } else {
      digits += number[at];
      point += seen_point ? 0 : 1;
    }
  }
  if (at < number.size()) {  // e or E
    const int exponent = std::atoi(number.c_str() + at + 1);
    if (exponent < -100 || exponent > 100) return std::nullopt;
    point += exponent;
  }
  while (point < 0) {
    digits.insert(0, "0");
    ++point;
  }
  while (static_cast<int>(digits.size()) < point) digits += '0';
  out.whole = digits.substr(0, static_cast<size_t>(point));
  out.fraction = digits.substr(static_cast<size_t>(point));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.whole.empty()) out.whole = "0";
  if (static_cast<int>(out.whole.size()) > kMaxDigits || static_cast<int>(out.fraction.size()) > kMaxDigits) return std::nullopt;
  if (out.is_zero()) out.negative = false;
  return out;
}

std::optional<GrammarNode> number_grammar(Grammar& g, const NumberRange& range) {
  if (!range.low && !range.high) return unbounded(g, range.fraction_digits);
  std::vector<GrammarNode> options;
  // Negative numbers: magnitudes above 0 (exclusive), with the bounds' roles swapped.
  if (!range.low || range.low->negative) {
    DecimalBound least;
    least.exclusive = true;
    bool possible = true;
    if (range.high && range.high->negative) least = *range.high;
    if (range.low && compare_magnitudes(*range.low, least) < 0) possible = false;
    if (possible) {
      if (const auto n = MagnitudeRange(g, least, range.low, range.fraction_digits).make()) options.push_back(g.sequence({g.literal("-"), *n}));
    }
  }
  if (!range.high || !range.high->negative) {
    DecimalBound least;
    if (range.low && !range.low->negative) least = *range.low;
    const bool possible = !range.high || compare_magnitudes(least, *range.high) <= 0;
    if (possible) {
      if (const auto n = MagnitudeRange(g, least, range.high, range.fraction_digits).make()) options.push_back(*n);
    }
  }
  if (options.empty()) return std::nullopt;
  return g.choice(std::move(options));
}

}  // namespace dsv4
