// Regular expressions of JSON schema (ECMA-262) as grammars: what is a regular language.
#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "engine/constraint/text_grammar.h"
#include "text/utf8.h"

namespace dsv4 {
namespace {

constexpr int kMaxRepeat = 1000;
constexpr int kMaxDepth = 50;

const Grammar::CodePoints kDigits = {{'0', '9'}};
const Grammar::CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Grammar::CodePoints kSpace = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Grammar::CodePoints kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class PatternReader {
 public:
  PatternReader(Grammar& g, TextForm form, std::string_view pattern) : g_(g), form_(form), text_(pattern) {}

  // Alternatives at the top, each anchored or not at either side.
  Result<GrammarNode> read() {
    DSV4_RETURN_IF_ERROR(check_utf8(text_, "pattern"));
    std::vector<GrammarNode> options;
    do {
      std::vector<GrammarNode> parts;
      if (!take('^')) parts.push_back(anything());
      ended_ = false;
      while (!at_end() && peek() != '|') {
        if (ended_) return fail("\"$\" stands before the end");
        if (peek() == ')') return fail("\")\" without \"(\"");
        DSV4_RETURN_IF_ERROR(read_term(0, &parts));
      }
      if (!ended_) parts.push_back(anything());
      options.push_back(g_.sequence(std::move(parts)));
    } while (take('|'));
    return g_.choice(std::move(options));
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return text_[at_]; }
  bool take(char c) {
    if (at_end() || peek() != c) return false;
    ++at_;
    return true;
  }
  Status fail(const std::string& rule) const { return invalid_argument(fmt::format("pattern \"{}\": {} (at byte {})", text_, rule, at_)); }
  Status cannot(const std::string& what) const { return unsupported(fmt::format("pattern \"{}\": {} cannot be enforced", text_, what)); }

  GrammarNode anything() { return g_.repeat(one(any_code_point()), 0); }
  GrammarNode one(const Grammar::CodePoints& ranges) {
    // Raw text must not turn into markup.
    return character(g_, form_, form_ == TextForm::kRaw ? intersect(ranges, complement({{'<', '<'}})) : ranges);
  }

  Result<GrammarNode> read_alternatives(int depth) {
    if (depth > kMaxDepth) return cannot("so deep a nesting");
    std::vector<GrammarNode> options;
    do {
      std::vector<GrammarNode> parts;
      while (!at_end() && peek() != '|' && peek() != ')') DSV4_RETURN_IF_ERROR(read_term(depth, &parts));
      options.push_back(g_.sequence(std::move(parts)));
    } while (take('|'));
    return g_.choice(std::move(options));
  }

  Status read_term(int depth, std::vector<GrammarNode>* parts) {
    if (peek() == '$' || peek() == '^') {
      if (depth > 0 || peek() == '^') return cannot("an anchor inside");
      ++at_;
      ended_ = true;
      return ok_status();
    }
    DSV4_ASSIGN_OR_RETURN(GrammarNode atom, read_atom(depth));
    int min = 1, max = 1;
    DSV4_RETURN_IF_ERROR(read_quantifier(&min, &max));
    parts->push_back(min == 1 && max == 1 ? atom : g_.repeat(atom, min, max));
    return ok_status();
  }

  Status read_quantifier(int* min, int* max) {
    if (take('*')) {
      *min = 0;
      *max = -1;
    } else if (take('+')) {
      *max = -1;
    } else if (take('?')) {
      *min = 0;
    } else if (!at_end() && peek() == '{') {
      ++at_;
      if (!read_count(min)) return fail("\"{\" without a count");
      *max = *min;
      if (take(',')) {
        *max = -1;
        if (!at_end() && peek() != '}' && !read_count(max)) return fail("a count is malformed");
      }
      if (!take('}')) return fail("\"}\" is missing");
      if (*max >= 0 && *max < *min) return fail("the counts are the wrong way round");
      if (*min > kMaxRepeat || *max > kMaxRepeat) return cannot(fmt::format("a count above {}", kMaxRepeat));
    } else {
      return ok_status();
    }
    take('?');  // laziness changes no language
    if (!at_end() && (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')) return fail("two quantifiers");
    return ok_status();
  }

  bool read_count(int* out) {
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), *out);
    if (error != std::errc() || *out < 0) return false;
    at_ += static_cast<size_t>(end - begin);
    return true;
  }

  Result<GrammarNode> read_atom(int depth) {
    if (take('(')) {
      if (take('?')) {
        if (take('<')) {
          if (at_end() || peek() == '=' || peek() == '!') return cannot("look-behind");
          const size_t close = text_.find('>', at_);
          if (close == std::string_view::npos) return fail("a group's name does not end");
          at_ = close + 1;
        } else if (!take(':')) {
          return cannot("look-ahead");
        }
      }
      DSV4_ASSIGN_OR_RETURN(const GrammarNode inside, read_alternatives(depth + 1));
      if (!take(')')) return fail("\")\" is missing");
      return inside;
    }
    if (take('[')) {
      DSV4_ASSIGN_OR_RETURN(const Grammar::CodePoints ranges, read_class());
      return one(ranges);
    }
    if (take('.')) return one(complement(kLineEnds));
    if (take('\\')) {
      DSV4_ASSIGN_OR_RETURN(const Grammar::CodePoints ranges, read_escape());
      return one(ranges);
    }
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') return fail("a quantifier without anything before it");
    const uint32_t c = next_code_point(text_, &at_);
    return one({{c, c}});
  }

  // After the backslash.
  Result<Grammar::CodePoints> read_escape() {
    if (at_end()) return fail("a backslash at the end");
    const uint32_t c = next_code_point(text_, &at_);
    const auto single = [](uint32_t code) { return Grammar::CodePoints{{code, code}}; };
    switch (c) {
      case 'd': return kDigits;
      case 'D': return complement(kDigits);
      case 'w': return kWord;
      case 'W': return complement(kWord);
      case 's': return kSpace;
      case 'S': return complement(kSpace);
      case 'n': return single('\n');
      case 'r': return single('\r');
      case 't': return single('\t');
      case 'f': return single('\f');
      case 'v': return single('\v');
      case 'x': return read_hex(2);
      case 'u': return read_hex(4);
      case 'b':
      case 'B': return cannot("a word boundary");
      case 'p':
      case 'P': return cannot("a Unicode property");
      case 'k': return cannot("a back reference");
      default: break;
    }
    if (c >= '0' && c <= '9') return cannot("a back reference");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return fail("an unknown escape");
    return single(c);
  }

  Result<Grammar::CodePoints> read_hex(size_t digits) {
    uint32_t code = 0;
    const char* begin = text_.data() + at_;
    if (at_ + digits > text_.size()) return fail("an escape is cut short");
    const auto [end, error] = std::from_chars(begin, begin + digits, code, 16);
    if (error != std::errc() || end != begin + digits) return fail("an escape has no hexadecimal digits");
    if (code >= 0xD800 && code <= 0xDFFF) return cannot("a surrogate");
    at_ += digits;
    return Grammar::CodePoints{{code, code}};
  }

  // After "[".
  Result<Grammar::CodePoints> read_class() {
    const bool negated = take('^');
    Grammar::CodePoints out;
    while (!at_end() && peek() != ']') {
      DSV4_ASSIGN_OR_RETURN(Grammar::CodePoints item, read_class_item());
      const bool is_range = at_ + 1 < text_.size() && peek() == '-' && text_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        DSV4_ASSIGN_OR_RETURN(const Grammar::CodePoints to, read_class_item());
        if (item.size() != 1 || to.size() != 1 || item[0].first != item[0].second || to[0].first != to[0].second)
          return fail("a range needs single characters");
        if (item[0].first > to[0].first) return fail("a range runs backwards");
        item = {{item[0].first, to[0].first}};
      }
      out.insert(out.end(), item.begin(), item.end());
    }
    if (!take(']')) return fail("\"]\" is missing");
    return negated ? complement(out) : normalize(out);
  }

  Result<Grammar::CodePoints> read_class_item() {
    if (take('\\')) {
      if (take('b')) return Grammar::CodePoints{{'\b', '\b'}};
      return read_escape();
    }
    const uint32_t c = next_code_point(text_, &at_);
    return Grammar::CodePoints{{c, c}};
  }

  Grammar& g_;
  const TextForm form_;
  const std::string_view text_;
  size_t at_ = 0;
  bool ended_ = false;  // "$" was read
};

}  // namespace

Result<GrammarNode> pattern_grammar(Grammar& g, TextForm form, std::string_view pattern) { return PatternReader(g, form, pattern).read(); }

}  // namespace dsv4
