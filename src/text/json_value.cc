#include "text/json_value.h"

#include <unordered_map>

#include <fmt/format.h>

#include "text/utf8.h"

namespace dsv4 {
namespace {

constexpr int kMaxDepth = 200;          // bounds recursion here and in every walker of the tree
constexpr size_t kIndexedMembers = 16;  // objects with more members find duplicates through a hash index

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Reader {
 public:
  Reader(std::string_view text, const JsonReadOptions& options) : text_(text), options_(options) {}

  bool read_document(JsonValue* out) {
    skip_space();
    if (!read_value(out, 0)) return false;
    skip_space();
    return at_ == text_.size() || fail("unexpected text after the value");
  }

  // "line L, column C: RULE" (1-based, columns in bytes).
  std::string error() const {
    size_t line = 1, line_start = 0;
    for (size_t i = 0; i < error_at_; ++i) {
      if (text_[i] == '\n') {
        ++line;
        line_start = i + 1;
      }
    }
    return fmt::format("line {}, column {}: {}", line, error_at_ - line_start + 1, error_);
  }

 private:
  bool fail(std::string rule) { return fail_at(at_, std::move(rule)); }
  bool fail_at(size_t at, std::string rule) {
    error_at_ = at;
    error_ = std::move(rule);
    return false;
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool read_value(JsonValue* out, int depth) {
    if (depth > kMaxDepth) return fail(fmt::format("nested deeper than {}", kMaxDepth));
    if (at_ >= text_.size()) return fail("the text ends where a value belongs");
    switch (text_[at_]) {
      case '{': return read_object(out, depth);
      case '[': return read_array(out, depth);
      case '"': out->kind = JsonKind::kString; return read_string(&out->text);
      case 't': return read_word("true", JsonKind::kTrue, out);
      case 'f': return read_word("false", JsonKind::kFalse, out);
      case 'n': return read_word("null", JsonKind::kNull, out);
      default: return read_number(out);
    }
  }

  bool read_word(std::string_view word, JsonKind kind, JsonValue* out) {
    if (!take_word(word)) return fail("not a JSON value");
    out->kind = kind;
    return true;
  }

  bool read_number(JsonValue* out) {
    out->kind = JsonKind::kNumber;
    const size_t start = at_;
    if (options_.nan_and_infinity && (take_word("NaN") || take_word("Infinity") || take_word("-Infinity"))) {
      out->text = text_.substr(start, at_ - start);
      return true;
    }
    take('-');
    const size_t digits = at_;
    skip_digits();
    if (at_ == digits) return fail_at(start, "not a JSON value");
    if (text_[digits] == '0' && at_ > digits + 1) return fail_at(start, "a number begins with a surplus 0");
    if (take('.') && !skip_digits()) return fail("a digit must follow the decimal point");
    if (take('e') || take('E')) {
      if (!take('-')) take('+');
      if (!skip_digits()) return fail("a digit must follow the exponent sign");
    }
    out->text = text_.substr(start, at_ - start);
    return true;
  }

  bool skip_digits() {
    const size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ > start;
  }

  bool read_array(JsonValue* out, int depth) {
    out->kind = JsonKind::kArray;
    ++at_;
    skip_space();
    if (take(']')) return true;
    while (true) {
      skip_space();
      if (!read_value(&out->items.emplace_back(), depth + 1)) return false;
      skip_space();
      if (take(']')) return true;
      if (!take(',')) return fail("expected ',' or ']' in an array");
    }
  }

  bool read_object(JsonValue* out, int depth) {
    out->kind = JsonKind::kObject;
    ++at_;
    skip_space();
    if (take('}')) return true;
    std::unordered_map<std::string, size_t> index;
    while (true) {
      skip_space();
      const size_t name_at = at_;
      if (at_ >= text_.size() || text_[at_] != '"') return fail("expected a member name in quotes");
      std::string name;
      if (!read_string(&name)) return false;
      skip_space();
      if (!take(':')) return fail("expected ':' after a member name");
      skip_space();
      const size_t place = member_place(*out, name, &index);
      if (place < out->names.size()) {
        if (!options_.repeated_members) return fail_at(name_at, fmt::format("duplicate member \"{}\"", name));
        out->items[place] = JsonValue();
      } else {
        out->names.push_back(std::move(name));
        out->items.emplace_back();
      }
      if (!read_value(&out->items[place], depth + 1)) return false;
      skip_space();
      if (take('}')) return true;
      if (!take(',')) return fail("expected ',' or '}' in an object");
    }
  }

  // The index of the member `name`: an earlier one's, or names.size() for a new one, which `index` then knows.
  static size_t member_place(const JsonValue& object, const std::string& name, std::unordered_map<std::string, size_t>* index) {
    const size_t count = object.names.size();
    if (count < kIndexedMembers) {
      for (size_t i = 0; i < count; ++i) {
        if (object.names[i] == name) return i;
      }
      return count;
    }
    if (index->empty()) {
      for (size_t i = 0; i < count; ++i) index->emplace(object.names[i], i);
    }
    return index->emplace(name, count).first->second;
  }

  bool read_string(std::string* out) {
    const size_t start = at_++;
    while (true) {
      const size_t run = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<unsigned char>(text_[at_]) >= 0x20) ++at_;
      out->append(text_, run, at_ - run);
      if (at_ >= text_.size()) return fail_at(start, "a string has no closing quote");
      if (take('"')) return true;
      if (text_[at_] != '\\') return fail("a control character in a string must be escaped");
      if (!read_escape(out)) return false;
    }
  }

  bool read_escape(std::string* out) {
    const size_t start = at_++;
    if (at_ >= text_.size()) return fail_at(start, "the text ends inside an escape");
    switch (text_[at_++]) {
      case '"': out->push_back('"'); return true;
      case '\\': out->push_back('\\'); return true;
      case '/': out->push_back('/'); return true;
      case 'b': out->push_back('\b'); return true;
      case 'f': out->push_back('\f'); return true;
      case 'n': out->push_back('\n'); return true;
      case 'r': out->push_back('\r'); return true;
      case 't': out->push_back('\t'); return true;
      case 'u': break;
      default: return fail_at(start, "unknown escape in a string");
    }
    uint32_t unit = 0;
    if (!read_hex4(&unit)) return fail_at(start, "\\u needs four hexadecimal digits");
    if (unit >= 0xD800 && unit <= 0xDFFF) {
      uint32_t low = 0;
      if (unit >= 0xDC00 || !take_word("\\u") || !read_hex4(&low) || low < 0xDC00 || low > 0xDFFF) {
        return fail_at(start, "a surrogate escape stands alone");
      }
      unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(unit, out);
    return true;
  }

  bool read_hex4(uint32_t* out) {
    *out = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ >= text_.size()) return false;
      const char c = text_[at_];
      uint32_t digit;
      if (is_digit(c))
        digit = c - '0';
      else if (c >= 'a' && c <= 'f')
        digit = c - 'a' + 10;
      else if (c >= 'A' && c <= 'F')
        digit = c - 'A' + 10;
      else
        return false;
      *out = *out << 4 | digit;
    }
    return true;
  }

  std::string_view text_;
  JsonReadOptions options_;
  size_t at_ = 0;
  size_t error_at_ = 0;
  std::string error_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return &items[i];
  }
  return nullptr;
}

std::string JsonValue::kind_name() const {
  switch (kind) {
    case JsonKind::kNull: return "null";
    case JsonKind::kFalse:
    case JsonKind::kTrue: return "a boolean";
    case JsonKind::kNumber: return "a number";
    case JsonKind::kString: return "a string";
    case JsonKind::kArray: return "an array";
    case JsonKind::kObject: return "an object";
  }
  return "unknown";
}

Result<JsonValue> read_json(std::string_view text, const std::string& what, const JsonReadOptions& options) {
  if (const auto bad = find_invalid_utf8(text)) {
    return invalid_data(fmt::format("{}: invalid UTF-8 at byte {} (0x{:02X})", what, *bad, static_cast<unsigned char>(text[*bad])));
  }
  JsonValue value;
  Reader reader(text, options);
  if (!reader.read_document(&value)) return invalid_data(what + ": " + reader.error());
  return value;
}

bool is_json(std::string_view text) { return read_json(text, "value", {.repeated_members = true}).ok(); }

}  // namespace dsv4
