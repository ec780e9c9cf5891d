// Fuzzes the completion parsers. The first byte gives the mode and how the rest is split; in the rest '@' stands for the DSML token
// and '$' for the end token, so that mutations meet them often. Checked: streaming at any split gives what the whole gives,
// arguments are JSON objects, and where the strict reading succeeds the tolerant one agrees.
#include <cstdlib>

#include "text/completion_parser.h"
#include "text/json_value.h"
#include "text/utf8.h"

namespace {

const dsv4::ChatMarkup kMarkup = {.bos = "<｜begin▁of▁sentence｜>",
                                  .eos = "<｜end▁of▁sentence｜>",
                                  .thinking_start = "<think>",
                                  .thinking_end = "</think>",
                                  .dsml = "｜DSML｜",
                                  .tool_calls_block_name = "tool_calls"};

void require(bool condition) {
  if (!condition) std::abort();
}

std::string expand(std::string_view input) {
  std::string out;
  for (const char c : input) {
    if (c == '@')
      out += kMarkup.dsml;
    else if (c == '$')
      out += kMarkup.eos;
    else
      out += c;
  }
  return out;
}

bool equal(const dsv4::ParsedCompletion& a, const dsv4::ParsedCompletion& b) {
  if (a.reasoning_content != b.reasoning_content || a.content != b.content || a.tool_calls.size() != b.tool_calls.size()) return false;
  for (size_t i = 0; i < a.tool_calls.size(); ++i) {
    const auto &x = a.tool_calls[i], &y = b.tool_calls[i];
    if (x.name != y.name || x.arguments != y.arguments || x.complete != y.complete) return false;
  }
  return true;
}

void apply(const std::vector<dsv4::CompletionEvent>& events, dsv4::ParsedCompletion* parsed) {
  using Kind = dsv4::CompletionEvent::Kind;
  for (const auto& event : events) {
    require(!dsv4::find_invalid_utf8(event.text).has_value());
    if (event.kind == Kind::kReasoning) parsed->reasoning_content += event.text;
    if (event.kind == Kind::kContent) parsed->content += event.text;
    if (event.kind == Kind::kToolCallStart) parsed->tool_calls.push_back({event.text, "", true});
    if (event.kind == Kind::kToolCallArguments) parsed->tool_calls.at(event.index).arguments += event.text;
    if (event.kind == Kind::kToolCallEnd) parsed->tool_calls.at(event.index).complete = event.complete;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto mode = (data[0] & 1) != 0 ? dsv4::ThinkingMode::kThinking : dsv4::ThinkingMode::kChat;
  const size_t step = 1 + (data[0] >> 1) % 40;
  const std::string text = expand({reinterpret_cast<const char*>(data + 1), size - 1});

  const auto whole = dsv4::parse_completion(text, mode, kMarkup);
  dsv4::CompletionParser parser(kMarkup, mode);
  dsv4::ParsedCompletion pieces;
  for (size_t at = 0; at < text.size(); at += step) apply(parser.feed(std::string_view(text).substr(at, step)), &pieces);
  apply(parser.finish(), &pieces);
  require(equal(whole, pieces));

  for (const auto& call : whole.tool_calls) {
    require(!call.name.empty());
    const auto json = dsv4::read_json(call.arguments, "arguments", {.repeated_members = true});
    require(json.ok() && json->is(dsv4::JsonKind::kObject));
  }
  const auto strict = dsv4::parse_completion_strict(text, mode, kMarkup);
  if (strict.ok()) require(equal(*strict, whole));
  return 0;
}
