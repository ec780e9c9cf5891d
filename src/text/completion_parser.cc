#include "text/completion_parser.h"

#include <algorithm>
#include <utility>

#include "text/json_value.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

constexpr size_t kNone = std::string_view::npos;
constexpr size_t kMaxInvokeTagBytes = 4096;  // a longer tag names no function; bounds what is looked at again and again

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

size_t space_at_front(std::string_view text) {
  size_t count = 0;
  while (count < text.size() && is_space(text[count])) ++count;
  return count;
}

bool is_blank(std::string_view text) { return space_at_front(text) == text.size(); }

std::string_view trim(std::string_view text) {
  text.remove_prefix(space_at_front(text));
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// How many bytes at the end of `text` are the beginning (not the whole) of one of the markers.
size_t partial_marker(std::string_view text, const std::vector<std::string_view>& markers) {
  size_t longest = 0;
  for (const std::string_view marker : markers) {
    for (size_t size = std::min(text.size(), marker.size() - 1); size > longest; --size) {
      if (text.substr(text.size() - size) == marker.substr(0, size)) longest = size;
    }
  }
  return longest;
}

// Newlines right before `end`, at most two: those that a block's opening tag takes with it.
size_t newlines_before(std::string_view text, size_t end) {
  size_t count = 0;
  while (count < 2 && count < end && text[end - 1 - count] == '\n') ++count;
  return count;
}

bool is_json_object(std::string_view text) {
  const auto json = read_json(text, "value", {.repeated_members = true});
  return json.ok() && json->is(JsonKind::kObject);
}

// Reads `NAME="VALUE"` with blank space before it; moves *at past it.
enum class Attribute { kFound, kMismatch, kCutShort };
Attribute read_attribute(std::string_view text, std::string_view name, size_t* at, std::string_view* value) {
  size_t i = *at;
  while (i < text.size() && is_space(text[i])) ++i;
  if (i == text.size()) return Attribute::kCutShort;
  if (i == *at) return Attribute::kMismatch;
  const std::string opening = std::string(name) + "=\"";
  const std::string_view here = text.substr(i, opening.size());
  if (here != opening) return i + here.size() == text.size() && opening.compare(0, here.size(), here) == 0 ? Attribute::kCutShort : Attribute::kMismatch;
  i += opening.size();
  const size_t end = text.find_first_of("\"<\n", i);
  if (end == kNone) return Attribute::kCutShort;
  if (text[end] != '"') return Attribute::kMismatch;
  *value = text.substr(i, end - i);
  *at = end + 1;
  return Attribute::kFound;
}

// Reads blank space and ">"; moves *at past them.
Attribute read_tag_end(std::string_view text, size_t* at) {
  size_t i = *at;
  while (i < text.size() && is_space(text[i])) ++i;
  if (i == text.size()) return Attribute::kCutShort;
  if (text[i] != '>') return Attribute::kMismatch;
  *at = i + 1;
  return Attribute::kFound;
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
  const size_t partial = partial_marker(held_, {eos});
  size_t keep = held_.size() - partial;
  while (keep >= eos.size() && std::string_view(held_).substr(keep - eos.size(), eos.size()) == eos) keep -= eos.size();
  if (at_end) {
    saw_eos_ = partial == 0 && keep < held_.size();
    if (!saw_eos_) keep = held_.size();  // the beginning of an end token is text
  }
  buffer_.append(held_, 0, keep);
  held_.erase(0, keep);
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

CompletionParser::Found CompletionParser::find_first(const std::vector<std::string_view>& markers) const {
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
  std::vector<std::string_view> markers = {open_block_, open_invoke_};
  if (reasoning_) markers.push_back(markup_.thinking_end);
  if (in_block_) markers.push_back(close_block_);
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
  Attribute outcome = read_attribute(text, "name", &at, &name);
  if (outcome == Attribute::kFound && name.empty()) outcome = Attribute::kMismatch;
  if (outcome == Attribute::kFound) outcome = read_tag_end(text, &at);
  if (outcome == Attribute::kCutShort && !at_end && text.size() < kMaxInvokeTagBytes) return false;
  if (outcome != Attribute::kFound) {
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
  const std::vector<std::string_view> markers = {open_parameter_, close_parameter_, close_invoke_, close_block_, open_invoke_, open_block_};
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
  static constexpr std::string_view kName = " name=\"", kTrue = "\" string=\"true\">", kFalse = "\" string=\"false\">";
  const std::string_view text = rest();
  const size_t start = open_parameter_.size();
  const size_t name_at = start + kName.size();
  const std::string open_any = "<" + markup_.dsml, close_any = "</" + markup_.dsml;
  scanned_ = std::max(scanned_, start);
  const Found exact = find_first({kTrue, kFalse});
  const Found next_tag = find_first({open_any, close_any});
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
  Attribute outcome = read_attribute(tag, "name", &header->size, &name);
  if (outcome == Attribute::kFound && read_attribute(tag, "string", &header->size, &kind) != Attribute::kCutShort) {
    outcome = read_tag_end(tag, &header->size);
  } else if (outcome == Attribute::kFound) {
    outcome = Attribute::kCutShort;
  }
  header->name = name;
  header->kind = kind == "true" ? ValueKind::kString : kind == "false" ? ValueKind::kJson : ValueKind::kUnmarked;
  if (outcome == Attribute::kFound) return HeaderOutcome::kKnown;
  const bool cut = outcome == Attribute::kCutShort && next_tag.marker.empty();
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
    case HeaderOutcome::kCutShort:
      consume(rest().size());
      break;
    case HeaderOutcome::kMalformed:  // what follows the tag's name is text
      consume(open_parameter_.size());
      break;
  }
  enter(State::kInvokeBody);
  return true;
}

bool CompletionParser::step_parameter_value(bool at_end) {
  const std::vector<std::string_view> closing = {close_parameter_};
  const Found found = find_first(closing);
  const std::string_view text = rest();
  size_t end = found.at;  // of the value
  size_t next = found.at + close_parameter_.size();
  bool whole = !found.marker.empty();
  if (!whole && at_end) {
    const size_t partial = partial_marker(text, {close_parameter_, close_invoke_});
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
    const std::vector<std::string_view> tags = {close_parameter_, close_invoke_};
    size_t limit = text.find(close_invoke_);
    if (limit == kNone) limit = text.size() - partial_marker(text, tags);
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

void CompletionParser::emit_json_value(std::string_view raw) {
  emit_arguments(is_json(raw) ? std::string(raw) : python_json_string(raw));
}

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
