#include "text/completion_parser.h"

#include <algorithm>
#include <utility>

#include "text/json_value.h"
#include "text/python_json.h"
#include "text/tag_scan.h"

namespace dsv4 {
namespace {

constexpr size_t kNone = std::string_view::npos;
constexpr size_t kMaxInvokeTagBytes = 4096;  // a longer tag names no function; bounds what is looked at again and again

bool is_json_object(std::string_view text) {
  const auto json = read_json(text, "value", {.repeated_members = true});
  return json.ok() && json->is(JsonKind::kObject);
}

}  // namespace

CompletionParser::CompletionParser(const ChatMarkup& markup, ThinkingMode mode)
    : markup_(markup),
      open_block_("<" + markup.dsml + markup.tool_calls_block_name + ">"),
      close_block_("</" + markup.dsml + markup.tool_calls_block_name + ">"),
      open_invoke_("<" + markup.dsml + "invoke"),
      close_invoke_("</" + markup.dsml + "invoke>"),
      open_parameter_("<" + markup.dsml + "parameter"),
      close_parameter_("</" + markup.dsml + "parameter>"),
      open_any_("<" + markup.dsml),
      close_any_("</" + markup.dsml),
      reasoning_(mode == ThinkingMode::kThinking) {
  DSV4_CHECK(!markup.eos.empty() && !markup.thinking_start.empty() && !markup.thinking_end.empty() && !markup.dsml.empty(),
             "a completion parser needs its markup");
}

std::vector<CompletionEvent> CompletionParser::feed(std::string_view bytes) {
  release(utf8_.feed(bytes), false);
  run(false);
  return std::exchange(events_, {});
}

std::vector<CompletionEvent> CompletionParser::finish() {
  release(utf8_.flush(), true);
  run(true);
  return std::exchange(events_, {});
}

// Holds back the longest end of the text that is end tokens and perhaps the beginning of one more.
void CompletionParser::release(std::string_view text, bool at_end) {
  held_ += text;
  const std::string_view eos = markup_.eos;
  const size_t partial = partial_marker(held_, {&eos, 1});
  size_t keep = held_.size() - partial;
  size_t num_eos = 0;
  for (; keep >= eos.size() && std::string_view(held_).substr(keep - eos.size(), eos.size()) == eos; keep -= eos.size()) ++num_eos;
  if (keep == 0) {
    num_held_eos_ += num_eos;
  } else {
    release_held_eos();
    buffer_.append(held_, 0, keep);
    num_held_eos_ = num_eos;
  }
  held_.erase(0, held_.size() - partial);
  if (!at_end) return;
  saw_eos_ = num_held_eos_ > 0 && partial == 0;
  if (saw_eos_) return;
  release_held_eos();  // with the beginning of another after them they are text
  buffer_ += held_;
}

void CompletionParser::release_held_eos() {
  for (; num_held_eos_ > 0; --num_held_eos_) buffer_ += markup_.eos;
}

void CompletionParser::run(bool at_end) {
  while (step(at_end)) {
  }
  if (at_end && call_index_ >= 0 && state_ != State::kText) end_call(false);
  // The dealt-with front goes when it is at least half of the memory: linear in total.
  if (begin_ >= buffer_.size() - begin_) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
}

bool CompletionParser::step(bool at_end) {
  switch (state_) {
    case State::kStart: return step_start(at_end);
    case State::kText: return step_text(at_end);
    case State::kBlockOpen: return step_block_open(at_end);
    case State::kInvokeHeader: return step_invoke_header(at_end);
    case State::kInvokeBody: return step_invoke_body(at_end);
    case State::kParameterHeader: return step_parameter_header(at_end);
    case State::kParameterValue: return step_parameter_value(at_end);
  }
  return false;
}

void CompletionParser::consume(size_t count) {
  begin_ += count;
  scanned_ -= std::min(scanned_, count);
}

void CompletionParser::enter(State state) {
  state_ = state;
  scanned_ = 0;
}

CompletionParser::Found CompletionParser::find_first(std::span<const std::string_view> markers) const {
  Found first;
  for (const std::string_view marker : markers) {
    const size_t from = scanned_ - std::min(scanned_, marker.size() - 1);
    const size_t at = rest().substr(0, first.at == kNone ? kNone : first.at + marker.size()).find(marker, from);
    if (at < first.at) first = {at, marker};
  }
  return first;
}

bool CompletionParser::step_start(bool at_end) {
  const std::string_view text = rest();
  const std::string_view token = markup_.thinking_start;
  if (text.size() < token.size() && token.substr(0, text.size()) == text && !at_end) return false;
  if (text.substr(0, token.size()) == token) {
    reasoning_ = true;
    consume(token.size());
  }
  enter(State::kText);
  return true;
}

bool CompletionParser::step_text(bool at_end) {
  std::string_view all[4] = {open_block_, open_invoke_};
  size_t count = 2;
  if (reasoning_) all[count++] = markup_.thinking_end;
  if (in_block_) all[count++] = close_block_;
  const std::span<const std::string_view> markers(all, count);
  const Found found = find_first(markers);
  const std::string_view text = rest();
  const bool found_any = !found.marker.empty();

  size_t limit = found_any ? found.at : text.size();  // what is certainly text ends here
  if (!found_any && !at_end) limit -= partial_marker(text, markers);
  const bool opens = found.marker == open_block_ || found.marker == open_invoke_;
  size_t newlines = opens || (!found_any && !at_end) ? newlines_before(text, limit) : 0;
  if (skip_space_ && is_blank(text.substr(std::min(scanned_, limit), limit - std::min(scanned_, limit)))) {
    if (!found_any && !at_end) {
      scanned_ = limit;  // all blank so far
      return false;
    }
    newlines = limit;  // all of it stands between calls
    if (!found_any) {
      consume(text.size());
      return false;
    }
  } else if (limit > 0) {
    skip_space_ = false;
  }
  emit_text(text.substr(0, limit - newlines));
  if (!found_any) {
    consume(limit - newlines);
    scanned_ = rest().size();
    return false;
  }
  lead_ = opens ? text.substr(limit - newlines, newlines) : std::string_view();
  consume(limit);
  if (found.marker == open_block_) {
    lead_ += open_block_;
    consume(open_block_.size());
    enter(State::kBlockOpen);
  } else if (found.marker == open_invoke_) {
    enter(State::kInvokeHeader);
  } else {
    if (found.marker == close_block_) {
      in_block_ = false;
      skip_space_ = true;
    } else {
      reasoning_ = false;
      skip_space_ = false;
    }
    consume(found.marker.size());
    scanned_ = 0;
  }
  return true;
}

bool CompletionParser::step_block_open(bool at_end) {
  const size_t space = scanned_ + space_at_front(rest().substr(scanned_));
  scanned_ = space;
  const std::string_view text = rest().substr(space);
  const auto begins = [&](const std::string& marker) { return text.substr(0, marker.size()) == marker; };
  const auto may_begin = [&](const std::string& marker) { return text.size() < marker.size() && marker.compare(0, text.size(), text) == 0; };
  if (begins(open_invoke_)) {
    lead_ += rest().substr(0, space);
    consume(space);
    enter(State::kInvokeHeader);
    return true;
  }
  if (begins(close_block_)) {  // a block without calls
    lead_.clear();
    consume(space + close_block_.size());
    skip_space_ = true;
    enter(State::kText);
    return true;
  }
  if (!at_end && (may_begin(open_invoke_) || may_begin(close_block_))) return false;
  give_up_call();
  return true;
}

// What was taken as a call's beginning is text after all.
void CompletionParser::give_up_call() {
  skip_space_ = false;
  emit_text(lead_);
  lead_.clear();
  enter(State::kText);
}

bool CompletionParser::step_invoke_header(bool at_end) {
  const std::string_view text = rest().substr(0, kMaxInvokeTagBytes);
  size_t at = open_invoke_.size();
  std::string_view name;
  TagPart outcome = read_attribute(text, "name", &at, &name);
  if (outcome == TagPart::kFound && name.empty()) outcome = TagPart::kMismatch;
  if (outcome == TagPart::kFound) outcome = read_tag_end(text, &at);
  if (outcome == TagPart::kCutShort && !at_end && text.size() < kMaxInvokeTagBytes) return false;
  if (outcome != TagPart::kFound) {
    lead_ += open_invoke_;
    consume(open_invoke_.size());
    give_up_call();
    return true;
  }
  ++call_index_;
  num_arguments_ = 0;
  raw_arguments_ = false;
  in_block_ = true;
  lead_.clear();
  emit(CompletionEvent::Kind::kToolCallStart, name);
  consume(at);
  enter(State::kInvokeBody);
  return true;
}

bool CompletionParser::step_invoke_body(bool at_end) {
  const std::string_view markers[] = {open_parameter_, close_parameter_, close_invoke_, close_block_, open_invoke_, open_block_};
  const Found found = find_first(markers);
  const std::string_view text = rest();
  if (found.marker.empty()) {
    const size_t partial = partial_marker(text, markers);
    body_ += text.substr(0, text.size() - partial);
    const std::string_view tail = text.substr(text.size() - partial);
    const bool is_tag = partial > std::string_view("</").size();  // shows some of the DSML token
    if (at_end && !is_tag) body_ += tail;
    consume(at_end ? text.size() : text.size() - partial);
    scanned_ = rest().size();
    return false;
  }
  body_ += text.substr(0, found.at);
  consume(found.at);
  scanned_ = 0;
  if (found.marker == open_parameter_) {
    flush_body(false);
    enter(State::kParameterHeader);
  } else if (found.marker == close_parameter_) {  // closes nothing
    consume(found.marker.size());
  } else {
    if (found.marker == close_invoke_) consume(found.marker.size());
    end_call(true);
  }
  return true;
}

// The opening tag of a parameter. The exact form wins, also with quotes in the name; only when the next tag begins (or all ends)
// without it is a looser form looked for.
CompletionParser::HeaderOutcome CompletionParser::find_parameter_header(bool at_end, Header* header) {
  static constexpr std::string_view kName = " name=\"";
  static constexpr std::string_view kTrue = "\" string=\"true\">", kFalse = "\" string=\"false\">";
  static constexpr std::string_view kExact[] = {kTrue, kFalse};
  const std::string_view text = rest();
  const size_t start = open_parameter_.size();
  const size_t name_at = start + kName.size();
  const std::string_view any_tag[] = {open_any_, close_any_};
  scanned_ = std::max(scanned_, start);
  const Found exact = find_first(kExact);
  const Found next_tag = find_first(any_tag);
  if (exact.at < next_tag.at && exact.at >= name_at && text.substr(start, kName.size()) == kName) {
    header->name = text.substr(name_at, exact.at - name_at);
    header->kind = exact.marker == kTrue ? ValueKind::kString : ValueKind::kJson;
    header->size = exact.at + exact.marker.size();
    return HeaderOutcome::kKnown;
  }
  if (next_tag.marker.empty() && !at_end) {
    scanned_ = text.size();
    return HeaderOutcome::kNeedMore;
  }
  const std::string_view tag = text.substr(0, next_tag.at);
  std::string_view name, kind;
  header->size = start;
  TagPart outcome = read_attribute(tag, "name", &header->size, &name);
  if (outcome == TagPart::kFound && read_attribute(tag, "string", &header->size, &kind) != TagPart::kCutShort) {
    outcome = read_tag_end(tag, &header->size);
  } else if (outcome == TagPart::kFound) {
    outcome = TagPart::kCutShort;
  }
  header->name = name;
  header->kind = kind == "true" ? ValueKind::kString : kind == "false" ? ValueKind::kJson : ValueKind::kUnmarked;
  if (outcome == TagPart::kFound) return HeaderOutcome::kKnown;
  const bool cut = outcome == TagPart::kCutShort && next_tag.marker.empty();
  return cut ? HeaderOutcome::kCutShort : HeaderOutcome::kMalformed;
}

bool CompletionParser::step_parameter_header(bool at_end) {
  Header header;
  switch (find_parameter_header(at_end, &header)) {
    case HeaderOutcome::kNeedMore: return false;
    case HeaderOutcome::kKnown:
      begin_argument(header);
      consume(header.size);
      enter(State::kParameterValue);
      return true;
    case HeaderOutcome::kCutShort: consume(rest().size()); break;
    case HeaderOutcome::kMalformed:  // what follows the tag's name is text
      consume(open_parameter_.size());
      break;
  }
  enter(State::kInvokeBody);
  return true;
}

bool CompletionParser::step_parameter_value(bool at_end) {
  const std::string_view closing[] = {close_parameter_, close_invoke_};
  const Found found = find_first(std::span(closing).first(1));
  const std::string_view text = rest();
  size_t end = found.at;  // of the value
  size_t next = found.at + close_parameter_.size();
  bool whole = !found.marker.empty();
  if (!whole && at_end) {
    const size_t partial = partial_marker(text, closing);
    end = text.size() - (partial > std::string_view("</").size() ? partial : 0);
    next = text.size();
    if (const size_t invoke_end = text.find(close_invoke_); invoke_end != kNone) end = next = invoke_end;
    whole = true;
  }
  if (whole) {
    if (value_kind_ == ValueKind::kString) {
      std::string escaped;
      append_python_json_escaped(text.substr(0, end), &escaped);
      emit_arguments(escaped + "\"");
    } else {
      emit_json_value(text.substr(0, end));
    }
    consume(next);
    enter(State::kInvokeBody);
    return true;
  }
  if (value_kind_ == ValueKind::kString) {
    // Text goes out at once, up to what may be a closing tag: that of the call counts only if this value's own never comes.
    size_t limit = text.find(close_invoke_);
    if (limit == kNone) limit = text.size() - partial_marker(text, closing);
    std::string escaped;
    append_python_json_escaped(text.substr(0, limit), &escaped);
    emit_arguments(escaped);
    consume(limit);
  }
  scanned_ = rest().size();
  return false;
}

void CompletionParser::begin_argument(const Header& header) {
  value_kind_ = header.kind;
  emit_arguments((num_arguments_++ == 0 ? "{" : ", ") + python_json_string(header.name) + ": ");
  if (value_kind_ == ValueKind::kString) emit_arguments("\"");
}

void CompletionParser::emit_json_value(std::string_view raw) { emit_arguments(is_json(raw) ? std::string(raw) : python_json_string(raw)); }

// Text inside a call and outside its parameters: the arguments themselves, or text of the answer.
void CompletionParser::flush_body(bool may_be_arguments) {
  const std::string body = std::exchange(body_, {});
  const std::string_view text = trim(body);
  if (text.empty()) return;
  if (may_be_arguments && num_arguments_ == 0 && is_json_object(text)) {
    emit_arguments(text);
    raw_arguments_ = true;
  } else {
    emit_text(text);
  }
}

void CompletionParser::end_call(bool complete) {
  flush_body(true);
  if (!raw_arguments_) emit_arguments(num_arguments_ == 0 ? "{}" : "}");
  emit(CompletionEvent::Kind::kToolCallEnd, "");
  events_.back().complete = complete;
  skip_space_ = true;
  enter(State::kText);
}

void CompletionParser::emit_text(std::string_view text) {
  if (!text.empty()) emit(reasoning_ ? CompletionEvent::Kind::kReasoning : CompletionEvent::Kind::kContent, text);
}

void CompletionParser::emit_arguments(std::string_view json_text) {
  if (!json_text.empty()) emit(CompletionEvent::Kind::kToolCallArguments, json_text);
}

void CompletionParser::emit(CompletionEvent::Kind kind, std::string_view text) {
  const bool is_text = kind == CompletionEvent::Kind::kReasoning || kind == CompletionEvent::Kind::kContent;
  const bool joins = is_text || kind == CompletionEvent::Kind::kToolCallArguments;
  if (joins && !events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
    return;
  }
  events_.push_back({kind, std::string(text), is_text ? -1 : call_index_, true});
}

ParsedCompletion parse_completion(std::string_view text, ThinkingMode mode, const ChatMarkup& markup) {
  CompletionParser parser(markup, mode);
  std::vector<CompletionEvent> events = parser.feed(text);
  for (CompletionEvent& event : parser.finish()) events.push_back(std::move(event));
  ParsedCompletion parsed;
  for (const CompletionEvent& event : events) {
    switch (event.kind) {
      case CompletionEvent::Kind::kReasoning: parsed.reasoning_content += event.text; break;
      case CompletionEvent::Kind::kContent: parsed.content += event.text; break;
      case CompletionEvent::Kind::kToolCallStart: parsed.tool_calls.push_back({event.text, "", true}); break;
      case CompletionEvent::Kind::kToolCallArguments: parsed.tool_calls.back().arguments += event.text; break;
      case CompletionEvent::Kind::kToolCallEnd: parsed.tool_calls.back().complete = event.complete; break;
    }
  }
  return parsed;
}

}  // namespace dsv4
