#include "bench/profile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <vector>

#include "base/thread_pool.h"
#include "verify/numbers.h"
#include "verify/runs.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmup = 3;  // pairs of steps
double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

class OpTimer final : public OpObserver {
 public:
  explicit OpTimer(Device& device) : device_(device), asynchronous_(!device.info().host_memory) { device_.context().observer = this; }
  ~OpTimer() override { device_.context().observer = nullptr; }

  void before(const char* op, const OpCost& cost) override {
    if (!active) return;
    cost_ = cost;
    op_ = op;
    start_ = Clock::now();
  }
  void after(const char*) override {
    if (!active) return;
    if (asynchronous_ && !device_.synchronize().ok()) failed = true;
    const double seconds = seconds_between(start_, Clock::now());
    ops.push_back({op_, {}, 1, seconds, cost_.bytes, cost_.flops});
  }

  bool active = false;
  bool failed = false;
  std::vector<ProfiledOp> ops;  // one entry a call

 private:
  Device& device_;
  bool asynchronous_;
  std::string op_;
  OpCost cost_;
  Clock::time_point start_;
};

// One sequence that has been prefilled; step() decodes one token.
class Decoder {
 public:
  static Result<std::unique_ptr<Decoder>> start(Engine& engine, int64_t context_tokens, int64_t steps) {
    std::unique_ptr<Decoder> d(new Decoder(engine));
    std::vector<int32_t> prompt;
    for (int64_t i = 0; i < context_tokens; ++i) prompt.push_back(static_cast<int32_t>(2 + (i * 7919) % (engine.config().vocab_size - 2)));
    Request request = greedy_request(std::move(prompt), steps + 1);
    request.ignore_eos = true;
    Decoder* self = d.get();
    DSV4_ASSIGN_OR_RETURN(d->id_, engine.submit(std::move(request), [self](const TokenOutput& o) {
      if (o.token >= 0) ++self->tokens_;
      if (o.finish == FinishReason::kError) self->error_ = o.error;
      self->ended_ |= o.finish != FinishReason::kNone;
    }));
    while (d->tokens_ == 0 && !d->ended_) DSV4_RETURN_IF_ERROR(engine.step());
    DSV4_RETURN_IF_ERROR(d->error_);
    return d;
  }
  ~Decoder() { engine_.cancel(id_); }

  Result<double> step() {
    const auto start = Clock::now();
    DSV4_RETURN_IF_ERROR(engine_.step());
    const double seconds = seconds_between(start, Clock::now());
    DSV4_RETURN_IF_ERROR(error_);
    return seconds;
  }

 private:
  explicit Decoder(Engine& engine) : engine_(engine) {}
  Engine& engine_;
  uint64_t id_ = 0;
  int64_t tokens_ = 0;
  bool ended_ = false;
  Status error_;
};

struct ProfiledStep {
  double seconds = 0;
  std::vector<ProfiledOp> ops;
};

// Leaves the faster half (rounded up) in `steps` and gives their number; sets the report's times of profiled steps.
int64_t keep_faster_half(std::vector<ProfiledStep>* steps, ProfileReport* report) {
  std::vector<double> times;
  for (const ProfiledStep& s : *steps) times.push_back(s.seconds);
  report->profiled_median = median(times);
  std::sort(steps->begin(), steps->end(), [](const ProfiledStep& a, const ProfiledStep& b) { return a.seconds < b.seconds; });
  steps->resize((steps->size() + 1) / 2);
  for (const ProfiledStep& s : *steps) report->profiled_seconds += s.seconds / static_cast<double>(steps->size());
  return static_cast<int64_t>(steps->size());
}

// One entry an operator, in the order of their first call.
std::vector<ProfiledOp> sum_of_ops(const std::vector<ProfiledStep>& steps) {
  std::vector<ProfiledOp> out;
  std::map<std::string, size_t> places;
  for (const ProfiledStep& step : steps) {
    for (const ProfiledOp& call : step.ops) {
      const auto [place, fresh] = places.try_emplace(call.op, out.size());
      if (fresh) out.push_back({call.op, component_of(call.op), 0, 0, 0, 0});
      ProfiledOp& sum = out[place->second];
      sum.calls += call.calls;
      sum.seconds += call.seconds;
      sum.bytes += call.bytes;
      sum.flops += call.flops;
    }
  }
  return out;
}

// A step observer that looks at nothing: while one is set steps run eagerly, so that operators are launched one by one.
struct NoLook final : StepObserver {
  Status tensor(const char*, int64_t, Matrix<const float>) override { return ok_status(); }
  Status indices(const char*, int64_t, Matrix<const int32_t>) override { return ok_status(); }
};

}  // namespace

std::string component_of(const std::string& op) {
  static const std::map<std::string, std::string> names = {
      {"attn_in", "dense projections"},
      {"wq_b", "dense projections"},
      {"wo_a", "dense projections"},
      {"wo_b", "dense projections"},
      {"moe_experts", "routed experts"},
      {"moe_all", "routed experts"},
      {"ffn_in", "shared expert"},
      {"swiglu", "shared expert"},
      {"shared_w2", "shared expert"},
      {"gate", "router"},
      {"moe_route", "router"},
      {"hc_pre", "mHC"},
      {"hc_post", "mHC"},
      {"hc_post_pre", "mHC"},
      {"hc_head", "mHC"},
      {"indexer_query", "indexer"},
      {"indexer_topk", "indexer"},
      {"index_compressor_step", "indexer"},
      {"compressor_step", "compressor"},
      {"sparse_attention", "sparse QK+PV"},
      {"kv_insert", "cache insert (quantization)"},
      {"q_norm", "norms and rotary"},
      {"query_norm_rope", "norms and rotary"},
      {"rope_table", "norms and rotary"},
      {"lm_head", "head"},
      {"argmax", "sampling"},
      {"sample", "sampling"},
      {"embed", "embedding"},
  };
  const auto found = names.find(op);
  return found == names.end() ? "other" : found->second;
}

double ProfileReport::operators_seconds() const {
  double sum = 0;
  for (const ProfiledOp& op : ops) sum += op.seconds;
  return sum;
}

Result<double> measure_peak_bandwidth(Device& device, std::string* method) {
  constexpr int64_t kBytes = int64_t{1} << 28;
  constexpr int kRounds = 6;
  DSV4_ASSIGN_OR_RETURN(const DeviceBuffer a, device.allocate(kBytes, "bandwidth test"));
  DSV4_RETURN_IF_ERROR(device.zero(a.as<void>(), kBytes));
  DSV4_RETURN_IF_ERROR(device.synchronize());
  double best = 0;
  if (device.info().host_memory) {
    ThreadPool* pool = static_cast<HostContext&>(device.context()).pool;
    if (pool == nullptr) return unsupported("bandwidth test: this device has no thread pool");
    *method = "reading 256 MiB, all threads";
    const uint64_t* words = a.as<uint64_t>();
    std::atomic<uint64_t> sink{0};
    for (int round = 0; round < kRounds; ++round) {
      const auto start = Clock::now();
      pool->parallel_for(kBytes / 8, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
        uint64_t sum[8] = {};
        for (int64_t i = begin; i + 8 <= end; i += 8) {
          for (int l = 0; l < 8; ++l) sum[l] += words[i + l];
        }
        for (const uint64_t s : sum) sink += s;
      });
      best = std::max(best, static_cast<double>(kBytes) / seconds_between(start, Clock::now()));
    }
    return best;
  }
  *method = "device-to-device copy of 256 MiB, both directions counted";
  DSV4_ASSIGN_OR_RETURN(const DeviceBuffer b, device.allocate(kBytes, "bandwidth test"));
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    DSV4_RETURN_IF_ERROR(device.copy(b.as<void>(), a.as<void>(), kBytes));
    DSV4_RETURN_IF_ERROR(device.synchronize());
    best = std::max(best, 2.0 * static_cast<double>(kBytes) / seconds_between(start, Clock::now()));
  }
  return best;
}

Result<ProfileReport> run_profile(Engine& engine, const ProfileOptions& options) {
  if (!engine.idle()) return invalid_argument("profile: the engine has requests");
  if (options.steps < 1 || options.context_tokens < 1) return invalid_argument("profile: at least one step and one token of context are needed");
  ProfileReport report;
  report.manifest = make_manifest(engine, options.command);
  report.steps = options.steps;
  report.context_tokens = options.context_tokens;
  DSV4_ASSIGN_OR_RETURN(report.peak_bandwidth, measure_peak_bandwidth(engine.device(), &report.peak_method));
  std::vector<double> headline;
  std::vector<ProfiledStep> profiled;
  {
    NoLook eager;
    OpTimer timer(engine.device());
    DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> decoder, Decoder::start(engine, options.context_tokens, 2 * (options.steps + kWarmup)));
    for (int64_t i = 0; i < options.steps + kWarmup; ++i) {
      DSV4_ASSIGN_OR_RETURN(const double seconds, decoder->step());
      const ScopedObserver observe(engine, &eager);
      timer.active = true;
      timer.ops.clear();
      DSV4_ASSIGN_OR_RETURN(const double timed, decoder->step());
      timer.active = false;
      if (i < kWarmup) continue;
      headline.push_back(seconds);
      profiled.push_back({timed, timer.ops});
    }
    if (timer.failed) return device_error("profile: the device failed while it was waited for");
  }
  report.headline_seconds = median(headline);
  const int64_t kept = keep_faster_half(&profiled, &report);
  report.ops = sum_of_ops(profiled);
  std::map<std::string, ProfiledComponent> components;
  for (ProfiledOp& op : report.ops) {
    op.calls /= kept;
    op.bytes /= kept;
    op.flops /= kept;
    op.seconds /= static_cast<double>(kept);
    ProfiledComponent& c = components[op.component];
    c.name = op.component;
    c.calls += op.calls;
    c.seconds += op.seconds;
    c.bytes += op.bytes;
  }
  report.gap_seconds = report.profiled_seconds - report.operators_seconds();
  for (auto& [name, c] : components) {
    c.share = c.seconds / report.profiled_seconds;
    c.bandwidth = c.seconds > 0 ? static_cast<double>(c.bytes) / c.seconds : 0;
    c.roofline = report.peak_bandwidth > 0 ? c.bandwidth / report.peak_bandwidth : 0;
    report.components.push_back(c);
  }
  std::sort(report.components.begin(), report.components.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return report;
}

}  // namespace dsv4
