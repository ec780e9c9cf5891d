#include "text/split_regex.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include "text/utf8.h"

namespace dsv4 {
namespace {

// Compiled code keeps its backtracking points here; runs of one class need none, so this bounds only odd patterns.
constexpr size_t kJitStackStartBytes = 32 * 1024;
constexpr size_t kJitStackMaxBytes = 4 * 1024 * 1024;

// Rewrites a pattern from Oniguruma's (Ruby) syntax to PCRE2's, accepting only what is known to mean the same in both.
class Translator {
 public:
  explicit Translator(const std::string& pattern) : pattern_(pattern) {}

  Status run(std::string* out) {
    out_ = out;
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        DSV4_RETURN_IF_ERROR(escape());
      } else if (in_class_) {
        DSV4_RETURN_IF_ERROR(class_character(c));
      } else if (c == '^' || c == '$') {
        return refuse(fmt::format("the anchor {}", c));  // line anchors in one library, text anchors in the other
      } else if (c == '(' && next() == '?') {
        DSV4_RETURN_IF_ERROR(group());
      } else {
        if (c == '(' && next() == '*') return refuse("a verb (*...)");
        if (c == '}' && next() == '+') return refuse("a + after {...}");  // possessive in one library, a repeat in the other
        if (c == '{' && next() == ',') return refuse("a repeat without a lower bound");
        if (c == '[')
          DSV4_RETURN_IF_ERROR(open_class());
        else
          copy(1);
      }
    }
    return ok_status();
  }

 private:
  char next() const { return at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0'; }
  void copy(size_t count) {
    out_->append(pattern_, at_, count);
    at_ += count;
  }
  static Status refuse(const std::string& what) { return unsupported("pattern uses " + what + ", which is not implemented"); }

  Status open_class() {
    in_class_ = true;
    copy(1);
    if (pattern_.compare(at_, 1, "^") == 0) copy(1);
    return pattern_.compare(at_, 1, "]") == 0 ? refuse("a class that begins with ]") : ok_status();
  }

  Status class_character(char c) {
    if (c == '[') return refuse("a class inside a class");
    if (c == '&' && next() == '&') return refuse("a class intersection (&&)");
    if (c == ']') in_class_ = false;
    copy(1);
    return ok_status();
  }

  Status group() {
    for (const char* allowed : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (pattern_.compare(at_, std::strlen(allowed), allowed) == 0) {
        copy(std::strlen(allowed));
        return ok_status();
      }
    }
    return refuse("the group " + pattern_.substr(at_, 4));
  }

  Status escape() {
    const char c = next();
    if (c == 's' || c == 'S') {
      *out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      return property();
    } else if (std::strchr("rntdD", c) != nullptr && c != '\0') {
      copy(2);
    } else if (static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7F && !std::isalnum(static_cast<unsigned char>(c))) {
      copy(2);
    } else {
      return refuse(fmt::format("the escape {}", pattern_.substr(at_, 2)));
    }
    return ok_status();
  }

  // General categories mean the same in both libraries; scripts and other properties are left out.
  Status property() {
    const size_t end = pattern_.find('}', at_);
    if (pattern_.compare(at_ + 2, 1, "{") != 0 || end == std::string::npos) return refuse("\\p without braces");
    const std::string name = pattern_.substr(at_ + 3, end - at_ - 3);
    static constexpr const char* kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
                                                  "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
                                                  "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"};
    for (const char* category : kCategories) {
      if (name == category) {
        copy(end + 1 - at_);
        return ok_status();
      }
    }
    return refuse("the property {" + name + "}");
  }

  const std::string& pattern_;
  std::string* out_ = nullptr;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

struct SplitRegex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

struct SplitRegex::Scratch::Impl {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

SplitRegex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {
  impl_->data = pcre2_match_data_create(1, nullptr);  // the whole match alone; groups are not looked at
  impl_->context = pcre2_match_context_create(nullptr);
  impl_->stack = pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr);
  DSV4_CHECK(impl_->data != nullptr && impl_->context != nullptr, "PCRE2 could not allocate its match data");
  pcre2_jit_stack_assign(impl_->context, nullptr, impl_->stack);
}

SplitRegex::Scratch::~Scratch() {
  pcre2_jit_stack_free(impl_->stack);
  pcre2_match_context_free(impl_->context);
  pcre2_match_data_free(impl_->data);
}

Result<SplitRegex> SplitRegex::compile(const std::string& pattern) {
  if (const auto bad = find_invalid_utf8(pattern)) return invalid_data(fmt::format("pattern has invalid UTF-8 at byte {}", *bad));
  std::string translated;
  DSV4_RETURN_IF_ERROR(Translator(pattern).run(&translated));
  int error = 0;
  size_t offset = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  DSV4_CHECK(context != nullptr, "PCRE2 could not allocate its compile context");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);  // what '.' leaves out
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (compiled == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return invalid_data(fmt::format("pattern is malformed: {}", reinterpret_cast<const char*>(message)));
  }
  auto code = std::make_shared<Code>();
  code->code = compiled;
  uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) return unsupported("pattern can match the empty string, which is not implemented");
  // Without compiled code (a build or machine that lacks it) pcre2_match interprets: slower, same result.
  (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  return SplitRegex(std::move(code));
}

Status SplitRegex::split(std::string_view text, Scratch* scratch, std::vector<std::string_view>* pieces) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;
  size_t from = 0;
  while (from < text.size()) {
    const int rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch->impl_->data, scratch->impl_->context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      unsigned char message[256] = {};
      pcre2_get_error_message(rc, message, sizeof(message));
      return resource_limit(fmt::format("the pre-tokenizer's pattern gave up on a text of {} bytes: {}", text.size(), reinterpret_cast<const char*>(message)));
    }
    const size_t* span = pcre2_get_ovector_pointer(scratch->impl_->data);
    if (span[1] <= span[0]) {  // look-around can still end a match where it began: no piece, go on one code point further
      size_t next = std::max(from, span[0]);
      if (next >= text.size()) break;
      next_code_point(text, &next);
      from = next;
      continue;
    }
    if (span[0] > done) pieces->push_back(text.substr(done, span[0] - done));
    pieces->push_back(text.substr(span[0], span[1] - span[0]));
    done = from = span[1];
  }
  if (done < text.size()) pieces->push_back(text.substr(done));
  return ok_status();
}

}  // namespace dsv4
