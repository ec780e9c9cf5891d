#include "server/metrics.h"

#include <algorithm>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace dsv4 {
namespace {

constexpr size_t kWindow = 1000;
constexpr double kRateSeconds = 10;

// Seconds: from a fast GPU's step to a long prompt on a CPU.
const prometheus::Histogram::BucketBoundaries kLatency = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
const prometheus::Histogram::BucketBoundaries kLengths = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};

template <class Builder>
auto& family(Builder builder, prometheus::Registry& registry, const char* name, const char* help) {
  return builder.Name(name).Help(help).Register(registry);
}

}  // namespace

struct Metrics::Families {
  prometheus::Registry registry;

  prometheus::Family<prometheus::Counter>& counters(const char* name, const char* help) { return family(prometheus::BuildCounter(), registry, name, help); }
  prometheus::Gauge& gauge(const char* name, const char* help) { return family(prometheus::BuildGauge(), registry, name, help).Add({}); }
  prometheus::Histogram& histogram(const char* name, const char* help, const prometheus::Histogram::BucketBoundaries& bounds) {
    return family(prometheus::BuildHistogram(), registry, name, help).Add({}, bounds);
  }

  prometheus::Family<prometheus::Counter>& http = counters("dsv4_http_requests_total", "HTTP requests by path and status");
  prometheus::Family<prometheus::Counter>& ended = counters("dsv4_requests_total", "Requests that ended, by reason");
  prometheus::Counter& rejected = counters("dsv4_requests_rejected_total", "Requests refused because the queue was full").Add({});
  prometheus::Family<prometheus::Counter>& verdicts = counters("dsv4_probe_verdicts_total", "Verdicts of the start-up and recovery probe");
  prometheus::Counter& pass = verdicts.Add({{"verdict", "pass"}});
  prometheus::Counter& fail = verdicts.Add({{"verdict", "fail"}});
  prometheus::Counter& prompt_tokens = counters("dsv4_prompt_tokens_total", "Prompt tokens of ended requests").Add({});
  prometheus::Counter& cached_tokens = counters("dsv4_cached_tokens_total", "Prompt tokens of ended requests that came from the prefix cache").Add({});
  prometheus::Counter& generated_tokens = counters("dsv4_generated_tokens_total", "Tokens generated").Add({});

  prometheus::Histogram& first_token = histogram("dsv4_time_to_first_token_seconds", "From a request's arrival to its first token", kLatency);
  prometheus::Histogram& between_tokens = histogram("dsv4_inter_token_seconds", "Between two tokens of a request", kLatency);
  prometheus::Histogram& request = histogram("dsv4_request_seconds", "From a request's arrival to its end", kLatency);
  prometheus::Histogram& step = histogram("dsv4_step_seconds", "One step of the engine", kLatency);
  prometheus::Histogram& prompt_length = histogram("dsv4_prompt_length_tokens", "Prompt tokens of a request", kLengths);
  prometheus::Histogram& answer_length = histogram("dsv4_answer_length_tokens", "Generated tokens of a request", kLengths);

  prometheus::Gauge& ready = gauge("dsv4_ready", "1 when requests are taken");
  prometheus::Gauge& outstanding = gauge("dsv4_requests_outstanding", "Requests waiting and running");
  prometheus::Gauge& waiting = gauge("dsv4_requests_waiting", "Requests in the engine's queue");
  prometheus::Gauge& running = gauge("dsv4_requests_running", "Requests in the batch");
  prometheus::Gauge& steps = gauge("dsv4_engine_steps", "Steps since the start");
  prometheus::Gauge& preemptions = gauge("dsv4_engine_preemptions", "Sequences set back to waiting because cache blocks ran out");
  prometheus::Gauge& prefix_hits = gauge("dsv4_prefix_cache_hits", "Prompts that began with a saved state");
  prometheus::Gauge& prefix_states = gauge("dsv4_prefix_cache_states", "Saved states");
  prometheus::Gauge& disk_hits = gauge("dsv4_disk_cache_hits", "Prompts that began with a state from disk");
  prometheus::Gauge& disk_states = gauge("dsv4_disk_cache_states", "States on disk");
  prometheus::Gauge& disk_bytes = gauge("dsv4_disk_cache_bytes", "Bytes of the states on disk");
  prometheus::Gauge& disk_damaged = gauge("dsv4_disk_cache_damaged", "Files of the disk cache that were not what they should be");
  prometheus::Family<prometheus::Gauge>& blocks = family(prometheus::BuildGauge(), registry, "dsv4_cache_blocks", "Cache blocks by pool and state");
  prometheus::Gauge& ratio4_used = blocks.Add({{"pool", "ratio4"}, {"state", "used"}});
  prometheus::Gauge& ratio4_free = blocks.Add({{"pool", "ratio4"}, {"state", "free"}});
  prometheus::Gauge& ratio128_used = blocks.Add({{"pool", "ratio128"}, {"state", "used"}});
  prometheus::Gauge& ratio128_free = blocks.Add({{"pool", "ratio128"}, {"state", "free"}});
  prometheus::Gauge& cache_bytes = gauge("dsv4_cache_bytes", "Memory of the cache");
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::on_rejected() {
  families_->rejected.Increment();
  std::lock_guard lock(mutex_);
  ++counts_.rejected;
}

void Metrics::on_token(double seconds, bool first) {
  families_->generated_tokens.Increment();
  (first ? families_->first_token : families_->between_tokens).Observe(seconds);
  std::lock_guard lock(mutex_);
  (first ? first_token_ : between_tokens_).add(seconds);
}

void Metrics::on_end(const Ended& e) {
  families_->ended.Add({{"reason", e.timed_out ? "timeout" : finish_reason_name(e.finish)}}).Increment();
  families_->prompt_tokens.Increment(static_cast<double>(e.prompt_tokens));
  families_->cached_tokens.Increment(static_cast<double>(e.cached_tokens));
  families_->request.Observe(e.seconds);
  families_->prompt_length.Observe(static_cast<double>(e.prompt_tokens));
  families_->answer_length.Observe(static_cast<double>(e.generated_tokens));
  std::lock_guard lock(mutex_);
  ++counts_.requests;
  counts_.errors += e.finish == FinishReason::kError || e.timed_out;
  counts_.cancelled += e.finish == FinishReason::kCancelled && !e.timed_out;
  request_.add(e.seconds);
}

void Metrics::on_step(double seconds) { families_->step.Observe(seconds); }

void Metrics::on_http(const std::string& path, int status, double) { families_->http.Add({{"path", path}, {"status", std::to_string(status)}}).Increment(); }

void Metrics::on_verdict(bool passed) { (passed ? families_->pass : families_->fail).Increment(); }

std::string Metrics::text(const EngineStats& s, LoopState state, int64_t outstanding) {
  Families& f = *families_;
  const auto set = [](prometheus::Gauge& gauge, int64_t value) { gauge.Set(static_cast<double>(value)); };
  set(f.ready, state == LoopState::kReady);
  set(f.outstanding, outstanding);
  set(f.waiting, s.waiting);
  set(f.running, s.running);
  set(f.steps, s.steps);
  set(f.preemptions, s.preemptions);
  set(f.prefix_hits, s.prefix_hits);
  set(f.prefix_states, s.prefix_states);
  set(f.disk_hits, s.disk_hits);
  set(f.disk_states, s.disk_states);
  set(f.disk_bytes, s.disk_bytes);
  set(f.disk_damaged, s.disk_damaged);
  set(f.ratio4_used, s.ratio4_blocks - s.ratio4_blocks_free);
  set(f.ratio4_free, s.ratio4_blocks_free);
  set(f.ratio128_used, s.ratio128_blocks - s.ratio128_blocks_free);
  set(f.ratio128_free, s.ratio128_blocks_free);
  set(f.cache_bytes, s.cache_bytes);
  return prometheus::TextSerializer().Serialize(f.registry.Collect());
}

LiveFigures Metrics::live(const EngineStats& stats) {
  std::lock_guard lock(mutex_);
  const auto now = Ticket::Clock::now();
  if (samples_.empty() || now - samples_.back().at > std::chrono::milliseconds(200)) samples_.push_back({now, stats.prompt_tokens, stats.generated_tokens});
  const auto old = [&](const Sample& s) { return std::chrono::duration<double>(now - s.at).count() > kRateSeconds; };
  while (samples_.size() > 2 && old(samples_[1])) samples_.erase(samples_.begin());
  LiveFigures out = counts_;
  const double seconds = std::chrono::duration<double>(now - samples_.front().at).count();
  if (seconds > 0.1) {
    out.prompt_tokens_per_second = static_cast<double>(stats.prompt_tokens - samples_.front().prompt_tokens) / seconds;
    out.generated_tokens_per_second = static_cast<double>(stats.generated_tokens - samples_.front().generated_tokens) / seconds;
  }
  out.first_token = first_token_.percentiles();
  out.between_tokens = between_tokens_.percentiles();
  out.request = request_.percentiles();
  return out;
}

void Metrics::Window::add(double value) {
  if (values_.size() < kWindow) {
    values_.push_back(static_cast<float>(value));
  } else {
    values_[next_] = static_cast<float>(value);
    next_ = (next_ + 1) % kWindow;
  }
  ++count_;
}

LiveFigures::Percentiles Metrics::Window::percentiles() const {
  LiveFigures::Percentiles out;
  out.count = count_;
  if (values_.empty()) return out;
  std::vector<float> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double share) { return sorted[std::min(sorted.size() - 1, static_cast<size_t>(share * static_cast<double>(sorted.size())))]; };
  out.p50 = at(0.50);
  out.p95 = at(0.95);
  out.p99 = at(0.99);
  return out;
}

}  // namespace dsv4
