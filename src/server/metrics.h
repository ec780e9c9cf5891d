// What the server counts: for Prometheus, and for its own live page.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/engine_loop.h"

namespace dsv4 {

// Recent latencies and rates, for people to look at.
struct LiveFigures {
  double prompt_tokens_per_second = 0, generated_tokens_per_second = 0;  // over the last 10 s
  // Of the last 1000; seconds; 0 when there are none.
  struct Percentiles {
    double p50 = 0, p95 = 0, p99 = 0;
    int64_t count = 0;
  };
  Percentiles first_token, between_tokens, request;
  int64_t requests = 0, errors = 0, rejected = 0, cancelled = 0;
};

class Metrics : public LoopListener {
 public:
  Metrics();
  ~Metrics() override;

  void on_rejected() override;
  void on_token(double seconds_since_previous, bool first) override;
  void on_end(const Ended& ended) override;
  void on_step(double seconds) override;
  void on_http(const std::string& path, int status, double seconds);
  void on_verdict(bool passed);  // of a probe

  // Prometheus' text format, with gauges as of `stats`.
  std::string text(const EngineStats& stats, LoopState state, int64_t outstanding);
  LiveFigures live(const EngineStats& stats);

 private:
  struct Families;
  std::unique_ptr<Families> families_;

  // The last values of a kind, oldest overwritten.
  class Window {
   public:
    void add(double value);
    LiveFigures::Percentiles percentiles() const;

   private:
    std::vector<float> values_;
    size_t next_ = 0;
    int64_t count_ = 0;
  };
  std::mutex mutex_;
  Window first_token_, between_tokens_, request_;
  LiveFigures counts_;
  struct Sample {
    Ticket::Clock::time_point at;
    int64_t prompt_tokens = 0, generated_tokens = 0;
  };
  std::vector<Sample> samples_;  // of the last seconds, for rates
};

}  // namespace dsv4
