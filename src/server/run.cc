#include "server/run.h"

#include <algorithm>

namespace dsv4 {
namespace {

constexpr std::chrono::milliseconds kPeerCheck{50};  // how late a lost client may be noticed
constexpr std::chrono::seconds kSilence{10};

}  // namespace

Run::~Run() {
  for (size_t i = 0; i < tickets_.size(); ++i) {
    if (!answers_[i].ended()) loop_->cancel(tickets_[i]);
  }
}

bool Run::ended() const {
  return std::all_of(answers_.begin(), answers_.end(), [](const Answer& a) { return a.ended(); });
}

void Run::pass_on(const Hooks& hooks, std::chrono::milliseconds wait) {
  const auto arrivals = Ticket::take(tickets_, wait);
  for (const Ticket::Arrival& arrival : arrivals) {
    Answer& answer = answers_[arrival.index];
    if (answer.ended()) continue;
    const bool at_end = arrival.output.finish != FinishReason::kNone;
    for (AnswerEvent& event : answer.feed(arrival.output, at_end && tickets_[arrival.index]->timed_out())) hooks.on_event(arrival.index, std::move(event));
    if (answer.ended() && !at_end) loop_->cancel(tickets_[arrival.index]);  // it ended early
  }
  const auto now = Ticket::Clock::now();
  if (!arrivals.empty()) heard_ = now;
  if (now - heard_ >= kSilence) {
    heard_ = now;
    if (hooks.on_silence) hooks.on_silence();
  }
}

bool Run::drive(const Hooks& hooks) {
  heard_ = Ticket::Clock::now();
  if (StreamWriter* const stream = hooks.stream; stream != nullptr) {
    const auto round = std::make_shared<Courier::Round>([&] {
      if (!stream->ready()) return false;
      pass_on(hooks, {});
      return !ended();
    });
    stream->set_waiting(false);
    Ticket::carry(tickets_, round);
    round->attend(kPeerCheck);
    Ticket::carry(tickets_, nullptr);
    stream->set_waiting(true);
  }
  while (!ended()) {
    if (hooks.stream != nullptr ? hooks.stream->gone() : hooks.peer_gone()) return false;  // the destructor cancels
    pass_on(hooks, kPeerCheck);
  }
  return true;
}

}  // namespace dsv4
