// A StepEngine for tests: every step gives each request its next scripted token. No model, no arithmetic; the clock is the test's.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine_loop.h"

namespace dsv4 {

class FakeEngine : public StepEngine {
 public:
  struct Piece {
    int32_t token = 7;
    std::string text = "x";
  };

  // What a request answers, piece by piece; then the end of sequence. Default: max_new_tokens times "x".
  std::function<std::vector<Piece>(const Request&)> script = [](const Request& r) { return std::vector<Piece>(static_cast<size_t>(r.max_new_tokens)); };
  std::atomic<int64_t> step_us{0};  // how long a step takes
  std::atomic<int64_t> max_running{4};
  std::atomic<bool> fault{false};         // the next step fails as a device does
  std::atomic<int64_t> max_prompt{1000};  // longer prompts are refused as the engine does
  std::atomic<int64_t> held{0};           // requests that hold cache blocks right now

  Result<uint64_t> submit(Request request, OutputSink sink) override {
    if (static_cast<int64_t>(request.prompt.size()) > max_prompt) return resource_limit("request: the prompt is too long");
    const uint64_t id = next_id_++;
    std::vector<Piece> pieces = script(request);
    live_[id] = {std::move(request), std::move(sink), std::move(pieces), 0};
    return id;
  }
  void cancel(uint64_t id) override {
    if (live_.count(id) != 0) end(id, FinishReason::kCancelled, {});
  }
  bool idle() const override { return live_.empty(); }
  Status step() override {
    if (step_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(step_us));
    if (fault.exchange(false)) {
      const Status error = device_error("the device fell off the bus");
      while (!live_.empty()) end(live_.begin()->first, FinishReason::kError, error);
      return error;
    }
    std::vector<uint64_t> ids;
    for (const auto& [id, live] : live_) {
      if (static_cast<int64_t>(ids.size()) < max_running) ids.push_back(id);
    }
    held = static_cast<int64_t>(ids.size());
    for (const uint64_t id : ids) advance(id);
    ++steps_;
    return ok_status();
  }
  EngineStats stats() const override {
    EngineStats s;
    s.running = std::min<int64_t>(max_running, static_cast<int64_t>(live_.size()));
    s.waiting = static_cast<int64_t>(live_.size()) - s.running;
    s.steps = steps_;
    return s;
  }

 private:
  struct Live {
    Request request;
    OutputSink sink;
    std::vector<Piece> pieces;
    size_t next = 0;
  };

  void advance(uint64_t id) {
    Live& live = live_[id];
    if (live.next == live.pieces.size()) return end(id, FinishReason::kEos, {});
    TokenOutput output;
    output.request_id = id;
    output.token = live.pieces[live.next].token;
    output.text = live.pieces[live.next].text;
    if (live.request.num_logprobs >= 0) {  // the token itself, and others behind it
      output.logprob = TokenLogprob{output.token, -0.25f};
      for (int32_t i = 0; i < live.request.num_logprobs; ++i) output.top_logprobs.push_back({output.token + i, -0.25f - static_cast<float>(i)});
    }
    ++live.next;
    if (static_cast<int64_t>(live.next) >= live.request.max_new_tokens) {
      const OutputSink sink = live.sink;
      live_.erase(id);
      output.finish = FinishReason::kLength;
      held = static_cast<int64_t>(live_.size());
      return sink(output);
    }
    live.sink(output);
  }
  void end(uint64_t id, FinishReason reason, Status error) {
    const OutputSink sink = live_[id].sink;
    live_.erase(id);
    held = std::min<int64_t>(max_running, static_cast<int64_t>(live_.size()));
    TokenOutput output;
    output.request_id = id;
    output.finish = reason;
    output.error = std::move(error);
    sink(output);
  }

  std::map<uint64_t, Live> live_;
  uint64_t next_id_ = 1;
  int64_t steps_ = 0;
};

}  // namespace dsv4
