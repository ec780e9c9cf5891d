#include "text/python_constants.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "text/python_lexer.h"

namespace dsv4 {
namespace {

constexpr int kMaxParentheses = 100;            // bounds recursion
constexpr size_t kMaxDictEntries = 1000;        // keys are compared one by one
constexpr size_t kMaxConstantBytes = 16 << 20;  // "X = X + X" doubles; a wording file is some kilobytes

// Evaluates one expression over the tokens of one statement. Any failure means "not a string expression".
class Expression {
 public:
  Expression(std::span<const PythonToken> tokens, const PythonConstants& known) : tokens_(tokens), known_(known) {}

  bool at_end() const { return at_ == tokens_.size(); }

  // sum := term ("+" term)*
  bool string(std::string* out, int depth = 0) {
    if (!term(out, depth)) return false;
    while (take("+")) {
      std::string right;
      if (!term(&right, depth)) return false;
      *out += right;
      if (out->size() > kMaxConstantBytes) return false;
    }
    return true;
  }

  bool dict(PythonConstants::Dict* out, int depth = 0) {
    if (depth > kMaxParentheses) return false;
    if (is_name()) {
      const auto known = known_.dicts.find(tokens_[at_].text);
      if (known == known_.dicts.end()) return false;
      ++at_;
      *out = known->second;
      return true;
    }
    if (take("(")) return dict(out, depth + 1) && take(")");
    if (!take("{")) return false;
    while (!take("}")) {
      std::string key, value;
      if (!string(&key) || !take(":") || !string(&value)) return false;
      bool replaced = false;
      for (auto& entry : *out) {
        if (entry.first == key) {
          entry.second = value;
          replaced = true;
        }
      }
      if (!replaced) out->emplace_back(std::move(key), std::move(value));
      if (out->size() > kMaxDictEntries) return false;
      if (!take(",")) return take("}");
    }
    return true;
  }

 private:
  bool take(std::string_view op) {
    if (at_end() || tokens_[at_].kind != PythonToken::Kind::kOther || tokens_[at_].text != op) return false;
    ++at_;
    return true;
  }
  bool is_name() const { return !at_end() && tokens_[at_].kind == PythonToken::Kind::kName; }

  // term := literal+ | NAME | "(" sum ")"
  bool term(std::string* out, int depth) {
    if (depth > kMaxParentheses || at_end()) return false;
    if (take("(")) return string(out, depth + 1) && take(")");
    if (is_name()) {
      const auto known = known_.strings.find(tokens_[at_].text);
      if (known == known_.strings.end()) return false;
      ++at_;
      *out = known->second;
      return true;
    }
    if (tokens_[at_].kind != PythonToken::Kind::kString) return false;
    while (!at_end() && tokens_[at_].kind == PythonToken::Kind::kString) *out += tokens_[at_++].text;
    return out->size() <= kMaxConstantBytes;
  }

  std::span<const PythonToken> tokens_;
  const PythonConstants& known_;
  size_t at_ = 0;
};

bool is_other(const PythonToken& token, std::string_view text) { return token.kind == PythonToken::Kind::kOther && token.text == text; }

// The index of the first "=" outside brackets, or tokens.size().
size_t find_equals(std::span<const PythonToken> tokens) {
  int depth = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind != PythonToken::Kind::kOther) continue;
    const std::string& text = tokens[i].text;
    if (text == "(" || text == "[" || text == "{") ++depth;
    if (text == ")" || text == "]" || text == "}") --depth;
    if (depth == 0 && text == "=") return i;
  }
  return tokens.size();
}

// Is tokens[1] an augmented assignment, "+=" and the like?
bool is_augmented(const PythonToken& token) {
  return token.kind == PythonToken::Kind::kOther && token.text.size() == 2 && token.text[1] == '=' &&
         std::string_view("=!<>:").find(token.text[0]) == std::string_view::npos;
}

void forget(const std::string& name, PythonConstants* constants) {
  constants->strings.erase(name);
  constants->dicts.erase(name);
  constants->unreadable.erase(name);
}

void read_statement(std::span<const PythonToken> tokens, PythonConstants* constants) {
  if (tokens.size() < 2 || tokens[0].kind != PythonToken::Kind::kName) return;
  const std::string& name = tokens[0].text;
  const std::string place = fmt::format("line {}: ", tokens[0].line);
  const size_t equals = find_equals(tokens);
  const bool assigns = equals < tokens.size();
  if (is_augmented(tokens[1]) || (assigns && (is_other(tokens[1], "[") || is_other(tokens[1], ",")))) {
    // NAME += ..., NAME[...] = ... and NAME, OTHER = ... change names in ways that are not followed.
    for (size_t i = 0; i < std::min(equals, tokens.size()); ++i) {
      const bool is_target = tokens[i].kind == PythonToken::Kind::kName && (i == 0 || is_other(tokens[i - 1], ","));
      if (!is_target) continue;
      forget(tokens[i].text, constants);
      constants->unreadable[tokens[i].text] = place + "changed in a way that is not followed";
    }
    return;
  }
  const bool annotated = is_other(tokens[1], ":") && assigns;
  if (!annotated && equals != 1) return;
  const auto value = tokens.subspan(equals + 1);
  std::string string;
  PythonConstants::Dict dict;
  Expression as_string(value, *constants);
  Expression as_dict(value, *constants);
  const bool is_string = as_string.string(&string) && as_string.at_end();
  const bool is_dict = !is_string && as_dict.dict(&dict) && as_dict.at_end();
  forget(name, constants);
  if (is_string)
    constants->strings[name] = std::move(string);
  else if (is_dict)
    constants->dicts[name] = std::move(dict);
  else
    constants->unreadable[name] = place + "not a plain string expression";
}

}  // namespace

Result<PythonConstants> read_python_constants(std::string_view source, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<PythonToken> tokens, lex_python(source, name));
  PythonConstants constants;
  size_t begin = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind != PythonToken::Kind::kEnd) continue;
    read_statement(std::span(tokens).subspan(begin, i - begin), &constants);
    begin = i + 1;
  }
  return constants;
}

}  // namespace dsv4
