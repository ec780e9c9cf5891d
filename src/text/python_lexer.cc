#include "text/python_lexer.h"

#include <cctype>

#include <fmt/format.h>

#include "text/utf8.h"

namespace dsv4 {
namespace {

// Python reads \r\n and a lone \r as \n, also inside triple-quoted strings.
std::string with_unix_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  return out;
}

bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || static_cast<unsigned char>(c) >= 0x80; }
bool continues_name(char c) { return begins_name(c) || std::isdigit(static_cast<unsigned char>(c)); }

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : source_(source), name_(name) {}

  Result<std::vector<PythonToken>> run() {
    while (at_ < source_.size()) {
      if (line_start_ && depth_ == 0) indented_ = peek() == ' ' || peek() == '\t' || peek() == '\f';
      line_start_ = false;
      DSV4_RETURN_IF_ERROR(next_token());
    }
    if (depth_ > 0) return error(bracket_line_, "a bracket is never closed");
    emit(PythonToken::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  Status error(int line, const std::string& rule) const { return invalid_data(fmt::format("{}: line {}: {}", name_, line, rule)); }

  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }

  void emit(PythonToken::Kind kind, std::string text) { emit_at(line_, kind, std::move(text)); }
  void emit_at(int line, PythonToken::Kind kind, std::string text) {
    if (!indented_) tokens_.push_back({kind, std::move(text), line});
  }

  void newline() {
    ++at_;
    if (depth_ == 0) {
      emit(PythonToken::Kind::kEnd, "");
      line_start_ = true;
    }
    ++line_;
  }

  Status next_token() {
    const char c = peek();
    if (c == '\n') {
      newline();
    } else if (c == ' ' || c == '\t' || c == '\f') {
      ++at_;
    } else if (c == '#') {
      while (at_ < source_.size() && peek() != '\n') ++at_;
    } else if (c == '\\' && peek(1) == '\n') {  // the statement goes on in the next line
      at_ += 2;
      ++line_;
    } else if (c == '"' || c == '\'') {
      return string_literal("");
    } else if (begins_name(c)) {
      const size_t start = at_;
      while (at_ < source_.size() && continues_name(peek())) ++at_;
      const std::string word(source_.substr(start, at_ - start));
      if (word.size() <= 2 && (peek() == '"' || peek() == '\'') && word.find_first_not_of("rRuUbBfF") == std::string::npos) {
        return string_literal(word);
      }
      emit(PythonToken::Kind::kName, word);
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      const size_t start = at_;
      while (at_ < source_.size() && (continues_name(peek()) || peek() == '.')) ++at_;
      emit(PythonToken::Kind::kOther, std::string(source_.substr(start, at_ - start)));
    } else if (c == ';' && depth_ == 0) {
      ++at_;
      emit(PythonToken::Kind::kEnd, "");
    } else {
      return operator_token(c);
    }
    return ok_status();
  }

  Status operator_token(char c) {
    if (c == '(' || c == '[' || c == '{') {
      if (depth_++ == 0) bracket_line_ = line_;
    } else if (c == ')' || c == ']' || c == '}') {
      if (depth_ == 0) return error(line_, fmt::format("'{}' closes nothing", c));
      --depth_;
    }
    size_t length = 1;
    if (peek(1) == '=' && std::string_view("=!<>+-*/%&|^@:").find(c) != std::string_view::npos) length = 2;
    emit(PythonToken::Kind::kOther, std::string(source_.substr(at_, length)));
    at_ += length;
    return ok_status();
  }

  // At the opening quote; `prefix` has been read.
  Status string_literal(const std::string& prefix) {
    const int line = line_;
    const char quote = peek();
    const bool triple = peek(1) == quote && peek(2) == quote;
    at_ += triple ? 3 : 1;
    const bool raw = prefix.find_first_of("rR") != std::string::npos;
    std::string plain_fault = prefix.find_first_of("bBfF") != std::string::npos ? prefix + "\"\"" : "";
    std::string value;
    while (true) {
      if (at_ >= source_.size() || (!triple && peek() == '\n')) return error(line, "a string is never closed");
      const char c = peek();
      if (c == quote && (!triple || (peek(1) == quote && peek(2) == quote))) {
        at_ += triple ? 3 : 1;
        break;
      }
      if (c == '\n') ++line_;
      if (c != '\\') {
        value += c;
        ++at_;
        continue;
      }
      if (at_ + 1 >= source_.size()) return error(line, "a string is never closed");
      if (raw) {  // the backslash stays, and keeps a quote from closing
        if (peek(1) == '\n') ++line_;
        value.append(source_, at_, 2);
        at_ += 2;
      } else {
        escape(&value, &plain_fault);
      }
    }
    if (plain_fault.empty())
      emit_at(line, PythonToken::Kind::kString, std::move(value));
    else
      emit_at(line, PythonToken::Kind::kOther, std::move(plain_fault));
    return ok_status();
  }

  // At a backslash with a character after it. An escape without a plain text value is written to `fault`.
  void escape(std::string* value, std::string* fault) {
    const char c = peek(1);
    at_ += 2;
    switch (c) {
      case '\n': ++line_; return;
      case '\\':
      case '\'':
      case '"': *value += c; return;
      case 'a': *value += '\a'; return;
      case 'b': *value += '\b'; return;
      case 'f': *value += '\f'; return;
      case 'n': *value += '\n'; return;
      case 'r': *value += '\r'; return;
      case 't': *value += '\t'; return;
      case 'v': *value += '\v'; return;
      case 'x': return code_escape(16, 2, 2, value, fault);
      case 'u': return code_escape(16, 4, 4, value, fault);
      case 'U': return code_escape(16, 8, 8, value, fault);
      case 'N': *fault = "\\N{...}"; return;
      default: break;
    }
    if (c >= '0' && c <= '7') {
      --at_;
      return code_escape(8, 1, 3, value, fault);
    }
    *value += '\\';  // an unknown escape stands for itself
    *value += c;
  }

  void code_escape(int base, int min_digits, int max_digits, std::string* value, std::string* fault) {
    uint32_t code = 0;
    int digits = 0;
    for (; digits < max_digits; ++digits) {
      const char c = peek();
      int digit = 99;
      if (std::isdigit(static_cast<unsigned char>(c)))
        digit = c - '0';
      else if (std::isxdigit(static_cast<unsigned char>(c)))
        digit = std::tolower(c) - 'a' + 10;
      if (digit >= base) break;
      code = code * base + digit;
      ++at_;
    }
    if (digits < min_digits || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
      *fault = "an escape that is no character";
    else
      append_utf8(code, value);
  }

  std::string_view source_;
  const std::string& name_;
  std::vector<PythonToken> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  int depth_ = 0;           // open brackets
  int bracket_line_ = 0;    // where the outermost of them stands
  bool line_start_ = true;  // the next character is the first of a logical line
  bool indented_ = false;   // the current logical line belongs to a body
};

}  // namespace

Result<std::vector<PythonToken>> lex_python(std::string_view source, const std::string& name) {
  if (source.substr(0, 3) == "\xEF\xBB\xBF") source.remove_prefix(3);  // byte order mark
  if (const auto bad = find_invalid_utf8(source)) return invalid_data(fmt::format("{}: invalid UTF-8 at byte {}", name, *bad));
  const std::string text = with_unix_newlines(source);
  return Lexer(text, name).run();
}

}  // namespace dsv4
