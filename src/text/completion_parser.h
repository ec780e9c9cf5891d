// A model's answer back into reasoning, content and tool calls. The form of a complete answer is
//     [reasoning </think>] content [\n\n<DSMLtool_calls>\n INVOKE... </DSMLtool_calls>] EOS
//     INVOKE := <DSMLinvoke name="NAME">\n PARAMETER... </DSMLinvoke>\n
//     PARAMETER := <DSMLparameter name="KEY" string="true|false">VALUE</DSMLparameter>\n
// where string="true" marks raw text and string="false" JSON.
//
// Two readings. The strict one takes exactly that form. The tolerant one takes any bytes, and is the streaming one:
//  1. Nothing is lost: all text comes out as reasoning, content or arguments. Bytes that are no UTF-8 become U+FFFD. End tokens at
//     the very end are dropped; one with text after it is text.
//  2. A leading <think> is dropped and begins reasoning in either mode; without </think> all is reasoning.
//  3. <DSMLinvoke name="..."> begins a call wherever it stands: in a block or not, in reasoning (a forgotten </think>) or content,
//     before or after other calls. The block's tags, up to two newlines before the first of them and blank space between calls are
//     not text. A block's opening tag without a call after it, and an invoke tag without a name, are text.
//  4. A call ends at its closing tag, at the next call, at the block's end or at the end. A parameter's value ends at its closing
//     tag; if that never comes, at the first </DSMLinvoke>; else at the end. A tag cut short by the end is dropped within a call.
//  5. A value marked JSON that is none, and one marked neither true nor false, becomes a string (the latter only if it is no JSON).
//     A call with a JSON object in place of parameters has it as its arguments. Other text inside a call is text of the answer.
//  6. Arguments are always one JSON object. A parameter name given twice stays in it twice.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat_markup.h"
#include "text/utf8_stream.h"

namespace dsv4 {

struct ParsedToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object
  bool complete = true;   // false: the answer ended inside the call
};

struct ParsedCompletion {
  std::string reasoning_content;
  std::string content;
  std::vector<ParsedToolCall> tool_calls;
};

// Errors (kInvalidData) name what was expected and the byte offset.
Result<ParsedCompletion> parse_completion_strict(std::string_view text, ThinkingMode mode, const ChatMarkup& markup);

// The tolerant reading of a whole answer.
ParsedCompletion parse_completion(std::string_view text, ThinkingMode mode, const ChatMarkup& markup);

struct CompletionEvent {
  enum class Kind {
    kReasoning,          // text: more reasoning
    kContent,            // text: more content
    kToolCallStart,      // text: the function's name
    kToolCallArguments,  // text: more of the arguments' JSON text
    kToolCallEnd,        // the arguments are whole
  };
  Kind kind = Kind::kContent;
  std::string text;      // UTF-8, cut between code points
  int index = -1;        // tool calls: 0, 1, ... in order
  bool complete = true;  // kToolCallEnd: false when the answer ended inside the call
};

// The tolerant reading, piece by piece. The texts joined by kind and index are the same for every split of the bytes. Time is
// linear in the bytes, whatever they are.
class CompletionParser {
 public:
  CompletionParser(const ChatMarkup& markup, ThinkingMode mode);

  // The events that are certain after these bytes. Text that may turn out to be markup waits.
  std::vector<CompletionEvent> feed(std::string_view bytes);

  // The end of the answer: what waited comes out. Call it once; feed nothing after it.
  std::vector<CompletionEvent> finish();

  // True after finish() when the answer ended with the end token.
  bool saw_eos() const { return saw_eos_; }

 private:
  enum class State { kStart, kText, kBlockOpen, kInvokeHeader, kInvokeBody, kParameterHeader, kParameterValue };
  enum class ValueKind { kString, kJson, kUnmarked };
  struct Found {
    size_t at = std::string_view::npos;
    std::string_view marker;  // empty: none
  };
  struct Header {  // a parsed opening tag
    size_t size = 0;
    std::string name;
    ValueKind kind = ValueKind::kString;
  };

  // Input: bytes -> UTF-8 -> all but what may be end tokens at the end -> buffer_.
  void release(std::string_view text, bool at_end);
  void release_held_eos();
  void run(bool at_end);
  // One step of the state at hand; false when it needs more text (never false at the end unless the buffer is empty).
  bool step(bool at_end);
  bool step_start(bool at_end);
  bool step_text(bool at_end);
  bool step_block_open(bool at_end);
  bool step_invoke_header(bool at_end);
  bool step_invoke_body(bool at_end);
  bool step_parameter_header(bool at_end);
  bool step_parameter_value(bool at_end);

  std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }
  void consume(size_t count);
  Found find_first(std::span<const std::string_view> markers) const;
  void enter(State state);

  void emit(CompletionEvent::Kind kind, std::string_view text);
  void emit_text(std::string_view text);
  void emit_arguments(std::string_view json_text);
  void emit_json_value(std::string_view raw);
  void begin_argument(const Header& header);
  void flush_body(bool may_be_arguments);
  void end_call(bool complete);
  void give_up_call();
  enum class HeaderOutcome { kKnown, kMalformed, kCutShort, kNeedMore };
  HeaderOutcome find_parameter_header(bool at_end, Header* header);

  const ChatMarkup markup_;
  const std::string open_block_, close_block_, open_invoke_, close_invoke_, open_parameter_, close_parameter_;
  const std::string open_any_, close_any_;  // how any opening and any closing tag begins
  Utf8Stream utf8_;
  size_t num_held_eos_ = 0;  // end tokens that may be the last ones
  std::string held_;         // may be the beginning of one more
  std::string buffer_;       // text not yet dealt with, from begin_ on
  size_t begin_ = 0;
  size_t scanned_ = 0;  // bytes of rest() in which the state at hand has already searched in vain
  State state_ = State::kStart;
  bool reasoning_ = false;   // text is reasoning
  bool in_block_ = false;    // the block's closing tag is markup
  bool skip_space_ = false;  // blank space here stands between calls
  std::string lead_;         // what was taken as markup and is text again if no call follows
  std::string body_;         // text inside a call and outside its parameters
  int call_index_ = -1;
  int num_arguments_ = 0;       // of this call
  bool raw_arguments_ = false;  // this call's arguments came as one JSON object
  ValueKind value_kind_ = ValueKind::kString;
  bool saw_eos_ = false;
  std::vector<CompletionEvent> events_;
};

}  // namespace dsv4
