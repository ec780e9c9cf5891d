#include "server/answer.h"

#include <random>

namespace dsv4 {

std::string new_call_id(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  static constexpr char kAlphabet[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kAlphabet[random() % (sizeof(kAlphabet) - 1)];
  return id;
}

Answer::Answer(AnswerOptions options) : options_(std::move(options)) {
  usage_.prompt_tokens = options_.prompt_tokens;
  if (options_.markup == nullptr) return;
  parser_.emplace(*options_.markup, options_.mode);
  if (options_.mode == ThinkingMode::kThinking) {
    thinking_ = true;
    thinking_end_ = options_.tokenizer->id_of(options_.markup->thinking_end).value_or(-1);
  }
}

ShownToken Answer::shown(const TokenOutput& output) const {
  const auto show = [&](const TokenLogprob& l) {
    return ShownLogprob{options_.tokenizer == nullptr ? std::string() : std::string(options_.tokenizer->token_bytes(l.token)), l.token, l.logprob};
  };
  ShownToken out{show(*output.logprob), {}};
  for (const TokenLogprob& l : output.top_logprobs) out.top.push_back(show(l));
  return out;
}

void Answer::translate(std::vector<CompletionEvent> events, std::vector<AnswerEvent>* out) {
  for (CompletionEvent& e : events) {
    if (early_) return;
    AnswerEvent event;
    event.text = std::move(e.text);
    event.tool_index = e.index;
    switch (e.kind) {
      case CompletionEvent::Kind::kReasoning: event.kind = AnswerEvent::Kind::kReasoning; break;
      case CompletionEvent::Kind::kContent:
        event.kind = AnswerEvent::Kind::kContent;
        event.logprobs.swap(waiting_);
        break;
      case CompletionEvent::Kind::kToolCallStart:
        event.kind = AnswerEvent::Kind::kToolStart;
        event.tool_id = new_call_id();
        ++num_calls_;
        break;
      case CompletionEvent::Kind::kToolCallArguments: event.kind = AnswerEvent::Kind::kToolArguments; break;
      case CompletionEvent::Kind::kToolCallEnd:
        event.kind = AnswerEvent::Kind::kToolEnd;
        early_ = options_.single_call;
        break;
    }
    out->push_back(std::move(event));
  }
}

std::vector<AnswerEvent> Answer::feed(const TokenOutput& output, bool timed_out) {
  std::vector<AnswerEvent> out;
  if (ended_) return out;
  const bool is_eos = output.finish == FinishReason::kEos;
  if (output.token >= 0) {
    ++usage_.completion_tokens;
    if (thinking_) {
      ++usage_.reasoning_tokens;
      thinking_ = output.token != thinking_end_;
    } else if (output.logprob && !is_eos) {
      waiting_.push_back(shown(output));
    }
  }
  if (parser_) {
    translate(parser_->feed(output.text), &out);
    if (output.finish != FinishReason::kNone) translate(parser_->finish(), &out);
  } else if (!output.text.empty() || (options_.tokenizer == nullptr && output.token >= 0)) {  // without text, that a token came is news too
    AnswerEvent event;
    event.text = output.text;
    event.logprobs.swap(waiting_);
    out.push_back(std::move(event));
  }
  if (output.finish == FinishReason::kNone && !early_) return out;

  AnswerEvent end;
  end.kind = AnswerEvent::Kind::kEnd;
  end.logprobs.swap(waiting_);
  usage_.cached_tokens = output.num_cached_tokens;
  end.usage = usage_;
  switch (early_ ? FinishReason::kEos : output.finish) {
    case FinishReason::kEos:
    case FinishReason::kStop: end.finish = num_calls_ > 0 ? "tool_calls" : "stop"; break;
    case FinishReason::kLength:
    case FinishReason::kContext: end.finish = "length"; break;
    case FinishReason::kCancelled:
      end.error = ApiError{.status = timed_out ? 504 : 503,
                           .message = output.error.ok() ? "the request was cancelled" : output.error.message(),
                           .code = timed_out ? "timeout" : "cancelled"};
      break;
    default:
      end.error = api_error(output.error);
      if (output.error.code() == StatusCode::kResourceLimit) end.error->status = 503;  // memory ran out under it; it was not too long in itself
      break;
  }
  if (output.finish == FinishReason::kStop && !early_) end.stop_text = output.stop_text;
  ended_ = true;
  out.push_back(std::move(end));
  return out;
}

}  // namespace dsv4
