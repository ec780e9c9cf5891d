#include "engine/constraint/text_grammar.h"

#include <algorithm>
#include <map>

#include "text/python_json.h"
#include "text/utf8.h"

namespace dsv4 {
namespace {

std::vector<uint32_t> code_points_of(std::string_view text) {
  std::vector<uint32_t> out;
  for (size_t at = 0; at < text.size();) out.push_back(next_code_point(text, &at));
  return out;
}

ByteSet set_of(std::string_view bytes) {
  ByteSet out;
  for (const char b : bytes) out.set(static_cast<unsigned char>(b));
  return out;
}

constexpr std::string_view kHex = "0123456789abcdefABCDEF";

// \uXXXX of every code point: plain ones, and surrogates in pairs.
GrammarNode unicode_escape(Grammar& g) {
  const auto set = [&](std::string_view bytes) { return g.bytes(set_of(bytes)); };
  const auto hex = [&](int n) { return g.repeat(set(kHex), n, n); };
  const GrammarNode plain = g.choice({g.sequence({set("0123456789abcefABCEF"), hex(3)}), g.sequence({set("dD"), set("01234567"), hex(2)})});
  const GrammarNode pair = g.sequence({set("dD"), set("89abAB"), hex(2), g.literal("\\u"), set("dD"), set("cdefCDEF"), hex(2)});
  return g.sequence({g.literal("\\u"), g.choice({plain, pair})});
}

}  // namespace

const Grammar::CodePoints& any_code_point() {
  static const Grammar::CodePoints all = {{0, 0x10FFFF}};
  return all;
}

GrammarNode character(Grammar& g, TextForm form, const Grammar::CodePoints& ranges) {
  if (form == TextForm::kRaw) return g.code_point(ranges);
  std::vector<GrammarNode> options;
  const Grammar::CodePoints plain = intersect(ranges, complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
  if (!plain.empty()) options.push_back(g.code_point(plain));
  if (normalize(ranges) == any_code_point()) {
    options.push_back(g.sequence({g.literal("\\"), g.bytes(set_of("\"\\/bfnrt"))}));
    options.push_back(unicode_escape(g));
  } else {
    for (const auto& [low, high] : intersect(ranges, {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})) {
      for (uint32_t c = low; c <= high; ++c) options.push_back(g.literal(spelled(form, std::string(1, static_cast<char>(c)))));
    }
  }
  if (options.empty()) options.push_back(g.bytes(ByteSet()));
  return g.choice(std::move(options));
}

std::string spelled(TextForm form, std::string_view text) {
  if (form == TextForm::kRaw) return std::string(text);
  std::string out;
  append_python_json_escaped(text, &out);
  return out;
}

GrammarNode json_text_except(Grammar& g, const std::vector<std::string>& names) {
  const Grammar::CodePoints plain = complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  const GrammarNode rest = g.repeat(g.code_point(plain), 0);
  struct Node {
    std::map<uint32_t, size_t> next;
    bool is_name = false;
  };
  std::vector<Node> tree(1);
  for (const std::string& name : names) {
    size_t at = 0;
    for (const uint32_t c : code_points_of(name)) {
      const auto [found, fresh] = tree[at].next.try_emplace(c, tree.size());
      at = found->second;
      if (fresh) tree.emplace_back();
    }
    tree[at].is_name = true;
  }
  std::vector<GrammarNode> made(tree.size());
  for (size_t i = tree.size(); i-- > 0;) {  // children lie behind their parents
    std::vector<GrammarNode> options;
    Grammar::CodePoints on_path;
    for (const auto& [c, child] : tree[i].next) {
      on_path.push_back({c, c});
      if (!intersect({{c, c}}, plain).empty()) options.push_back(g.sequence({g.code_point({{c, c}}), made[child]}));
    }
    options.push_back(g.sequence({g.code_point(intersect(plain, complement(on_path))), rest}));
    if (!tree[i].is_name) options.push_back(g.literal(""));
    made[i] = g.choice(std::move(options));
  }
  return made[0];
}

// The failure function of Knuth, Morris and Pratt over code points, as rules: rule k has seen the first k of `end`.
GrammarNode text_up_to(Grammar& g, std::string_view end) {
  const std::vector<uint32_t> want = code_points_of(end);
  const size_t n = want.size();
  std::vector<size_t> fall(n + 1, 0);
  for (size_t i = 1, k = 0; i < n; ++i) {
    while (k > 0 && want[i] != want[k]) k = fall[k];
    if (want[i] == want[k]) ++k;
    fall[i + 1] = k;
  }
  const auto go = [&](size_t k, uint32_t c) {
    while (k > 0 && want[k] != c) k = fall[k];
    return want[k] == c ? k + 1 : size_t{0};
  };
  std::vector<uint32_t> alphabet = want;
  std::sort(alphabet.begin(), alphabet.end());
  alphabet.erase(std::unique(alphabet.begin(), alphabet.end()), alphabet.end());
  std::vector<GrammarNode> rules;
  for (size_t k = 0; k < n; ++k) rules.push_back(g.rule());
  for (size_t k = 0; k < n; ++k) {
    std::vector<GrammarNode> options;
    Grammar::CodePoints known;
    for (const uint32_t c : alphabet) {
      const size_t next = go(k, c);
      if (next == 0) continue;
      known.push_back({c, c});
      const GrammarNode one = g.code_point({{c, c}});
      options.push_back(next == n ? one : g.sequence({one, rules[next]}));
    }
    options.push_back(g.sequence({g.code_point(complement(known)), rules[0]}));
    g.define(rules[k], g.choice(std::move(options)));
  }
  return rules[0];
}

}  // namespace dsv4
