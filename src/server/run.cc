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

bool Run::drive(const Hooks& hooks) {
  auto heard = Ticket::Clock::now();
  while (!std::all_of(answers_.begin(), answers_.end(), [](const Answer& a) { return a.ended(); })) {
    const auto arrivals = Ticket::take(tickets_, kPeerCheck);
    for (const Ticket::Arrival& arrival : arrivals) {
      Answer& answer = answers_[arrival.index];
      if (answer.ended()) continue;
      const bool at_end = arrival.output.finish != FinishReason::kNone;
      for (AnswerEvent& event : answer.feed(arrival.output, at_end && tickets_[arrival.index]->timed_out())) hooks.on_event(arrival.index, std::move(event));
      if (answer.ended() && !at_end) loop_->cancel(tickets_[arrival.index]);  // it ended early
    }
    const auto now = Ticket::Clock::now();
    if (!arrivals.empty()) heard = now;
    if (now - heard >= kSilence) {
      heard = now;
      if (hooks.on_silence) hooks.on_silence();
    }
    if (hooks.peer_gone()) return false;  // the destructor cancels
  }
  return true;
}

}  // namespace dsv4
