// The strict reading of a completion (see completion_parser.h). It shares no code with the tolerant one, so that each is a check
// of the other.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "text/completion_parser.h"
#include "text/json_value.h"
#include "text/python_json.h"
#include "text/utf8.h"

namespace dsv4 {
namespace {

constexpr size_t kNone = std::string_view::npos;

class StrictReader {
 public:
  StrictReader(std::string_view text, const ChatMarkup& markup) : text_(text), markup_(markup) {}

  Result<ParsedCompletion> read(ThinkingMode mode) {
    DSV4_RETURN_IF_ERROR(check_utf8(text_, "completion"));
    const std::string block_start = "\n\n" + tag("<", markup_.tool_calls_block_name);
    ParsedCompletion parsed;
    if (mode == ThinkingMode::kThinking) {
      const size_t end = text_.find(markup_.thinking_end);
      if (end == kNone || text_.find(block_start) < end) return expected(markup_.thinking_end + " after the reasoning");
      parsed.reasoning_content = text_.substr(0, end);
      at_ = end + markup_.thinking_end.size();
    }
    const size_t block = text_.find(block_start, at_);
    const size_t end = std::min(text_.find(markup_.eos, at_), block);
    if (end == kNone) return expected("the end token " + markup_.eos);
    parsed.content = text_.substr(at_, end - at_);
    at_ = end;
    if (end == block) {
      at_ += block_start.size();
      DSV4_RETURN_IF_ERROR(read_calls(&parsed.tool_calls));
    }
    DSV4_RETURN_IF_ERROR(expect(markup_.eos));
    if (at_ != text_.size()) return expected("nothing after the end token");
    for (const std::string& token : {markup_.bos, markup_.eos, markup_.thinking_start, markup_.thinking_end, markup_.dsml}) {
      if (parsed.content.find(token) != kNone) return invalid_data("completion: the content holds the special token " + token);
      if (parsed.reasoning_content.find(token) != kNone) return invalid_data("completion: the reasoning holds the special token " + token);
    }
    return parsed;
  }

 private:
  std::string tag(const char* opening, const std::string& name) const { return opening + markup_.dsml + name; }

  Status expected(const std::string& what) const { return invalid_data(fmt::format("completion: expected {} at byte {}", what, at_)); }

  bool take(std::string_view literal) {
    if (text_.substr(at_, literal.size()) != literal) return false;
    at_ += literal.size();
    return true;
  }
  Status expect(const std::string& literal) { return take(literal) ? ok_status() : expected("\"" + literal + "\""); }

  // Takes the text up to `literal`, and it.
  Status take_until(const std::string& literal, std::string_view* out) {
    const size_t end = text_.find(literal, at_);
    if (end == kNone) return expected("text up to \"" + literal + "\"");
    *out = text_.substr(at_, end - at_);
    at_ = end + literal.size();
    return ok_status();
  }

  // After "<DSMLtool_calls".
  Status read_calls(std::vector<ParsedToolCall>* calls) {
    DSV4_RETURN_IF_ERROR(expect(">\n"));
    while (!take(tag("</", markup_.tool_calls_block_name) + ">")) {
      DSV4_RETURN_IF_ERROR(expect(tag("<", "invoke")));
      DSV4_RETURN_IF_ERROR(read_call(&calls->emplace_back()));
    }
    return ok_status();
  }

  // After "<DSMLinvoke".
  Status read_call(ParsedToolCall* call) {
    std::string_view name;
    DSV4_RETURN_IF_ERROR(expect(" name=\""));
    DSV4_RETURN_IF_ERROR(take_until("\"", &name));
    if (name.empty() || name.find_first_of("<\n") != kNone) return expected("a function name before this");
    DSV4_RETURN_IF_ERROR(expect(">\n"));
    take("\n");  // a call without parameters has an empty line
    call->name = name;
    call->arguments = "{";
    std::set<std::string_view> names;
    while (take(tag("<", "parameter"))) {
      if (!names.empty()) call->arguments += ", ";
      DSV4_RETURN_IF_ERROR(read_parameter(&names, &call->arguments));
    }
    call->arguments += "}";
    return expect(tag("</", "invoke") + ">\n");
  }

  // After "<DSMLparameter".
  Status read_parameter(std::set<std::string_view>* names, std::string* arguments) {
    static const std::string kTrue = "\" string=\"true\">", kFalse = "\" string=\"false\">";
    DSV4_RETURN_IF_ERROR(expect(" name=\""));
    const bool is_string = text_.find(kTrue, at_) < text_.find(kFalse, at_);
    std::string_view name, value;
    DSV4_RETURN_IF_ERROR(take_until(is_string ? kTrue : kFalse, &name));
    if (name.find("<" + markup_.dsml) != kNone || name.find("</" + markup_.dsml) != kNone) return expected("string=\"true\" or \"false\" before this");
    if (!names->insert(name).second) return expected(fmt::format("a parameter name other than \"{}\" again before this", name));
    DSV4_RETURN_IF_ERROR(take_until(tag("</", "parameter") + ">", &value));
    DSV4_RETURN_IF_ERROR(expect("\n"));
    if (!is_string && !is_json(value)) return expected("a JSON value before this");
    *arguments += python_json_string(name) + ": " + (is_string ? python_json_string(value) : std::string(value));
    return ok_status();
  }

  std::string_view text_;
  const ChatMarkup& markup_;
  size_t at_ = 0;
};

}  // namespace

Result<ParsedCompletion> parse_completion_strict(std::string_view text, ThinkingMode mode, const ChatMarkup& markup) {
  return StrictReader(text, markup).read(mode);
}

}  // namespace dsv4
