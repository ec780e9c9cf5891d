#include "bench/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "verify/numbers.h"
#include "verify/runs.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class OpTally final : public OpObserver {
 public:
  explicit OpTally(Device& device) : device_(device) { device_.context().observer = this; }
  ~OpTally() override { device_.context().observer = nullptr; }

  void before(const char* op, const OpCost& cost) override {
    const auto [place, fresh] = index_.try_emplace(op, ops_.size());
    if (fresh) ops_.push_back({op});
    entry_ = place->second;
    ++ops_[entry_].calls;
    ops_[entry_].bytes += cost.bytes;
    ops_[entry_].flops += cost.flops;
    start_ = Clock::now();
  }
  void after(const char*) override {
    if (!device_.info().host_memory && !device_.synchronize().ok()) failed_ = true;
    ops_[entry_].seconds += seconds_since(start_);
  }

  // Means of `steps` steps.
  Result<std::vector<StepOp>> ops(int64_t steps) const {
    if (failed_) return device_error("bench: the device failed while it was waited for");
    std::vector<StepOp> out = ops_;
    for (StepOp& op : out) {
      op.calls /= steps;
      op.bytes /= steps;
      op.flops /= steps;
      op.seconds /= static_cast<double>(steps);
    }
    return out;
  }

 private:
  Device& device_;
  bool failed_ = false;
  std::map<std::string, size_t, std::less<>> index_;
  std::vector<StepOp> ops_;
  size_t entry_ = 0;
  Clock::time_point start_;
};

// Looks at nothing: while a step observer is set, steps run operator by operator also on devices with graphs.
struct Eager final : StepObserver {
  Status tensor(const char*, int64_t, Matrix<const float>) override { return ok_status(); }
  Status indices(const char*, int64_t, Matrix<const int32_t>) override { return ok_status(); }
};

Request seeded_request(const Engine& engine, int64_t tokens, int64_t seed, int64_t new_tokens) {
  std::vector<int32_t> prompt;
  const int64_t vocab = engine.config().vocab_size;
  for (int64_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<int32_t>((17 + seed * 7919 + i * 104729) % vocab));
  Request request = greedy_request(std::move(prompt), new_tokens);
  request.ignore_eos = true;
  return request;
}

struct Running {
  uint64_t id = 0;
  std::vector<int32_t> tokens;
  Status error;
  bool ended = false;
};

// Requests that are cancelled when the measurement ends, however it ends.
class SeededBatch {
 public:
  explicit SeededBatch(Engine& engine) : engine_(engine) {}
  ~SeededBatch() {
    for (const auto& r : running_) engine_.cancel(r->id);
  }
  Status add(Request request) {
    running_.push_back(std::make_unique<Running>());
    Running* r = running_.back().get();
    DSV4_ASSIGN_OR_RETURN(r->id, engine_.submit(std::move(request), [r](const TokenOutput& o) {
      if (o.token >= 0) r->tokens.push_back(o.token);
      if (o.finish == FinishReason::kError) r->error = o.error;
      r->ended |= o.finish != FinishReason::kNone;
    }));
    return ok_status();
  }
  // Seconds of one step.
  Result<double> step() {
    const auto start = Clock::now();
    DSV4_RETURN_IF_ERROR(engine_.step());
    const double seconds = seconds_since(start);
    for (const auto& r : running_) DSV4_RETURN_IF_ERROR(r->error);
    return seconds;
  }
  bool all_decode() const {
    return std::all_of(running_.begin(), running_.end(), [](const auto& r) { return !r->tokens.empty(); });
  }
  bool ended() const {
    return std::any_of(running_.begin(), running_.end(), [](const auto& r) { return r->ended; });
  }
  const std::vector<int32_t>& tokens() const { return running_[0]->tokens; }

 private:
  Engine& engine_;
  std::vector<std::unique_ptr<Running>> running_;
};

void set_times(std::vector<double> times, StepTiming* out) {
  out->steps = static_cast<int64_t>(times.size());
  out->min = *std::min_element(times.begin(), times.end());
  out->max = *std::max_element(times.begin(), times.end());
  out->median = median(std::move(times));
}

}  // namespace

std::string StepShape::name() const { return kind == "decode" ? fmt::format("decode {} x {}", sequences, context) : fmt::format("prefill {}", rows); }

OpCost StepTiming::cost() const {
  OpCost sum;
  for (const StepOp& op : ops) {
    sum.bytes += op.bytes;
    sum.flops += op.flops;
  }
  return sum;
}

int64_t StepTiming::bytes_of(std::string_view name) const {
  for (const StepOp& op : ops) {
    if (op.op == name) return op.bytes;
  }
  return 0;
}

double Peaks::floor_seconds(const OpCost& cost) const {
  return std::max(static_cast<double>(cost.bytes) / bytes_per_second, static_cast<double>(cost.flops) / flops_per_second);
}

namespace {

constexpr int64_t kRoundSteps = 8;  // of one shape before the next has its turn

Status prepare(const DecodeRun& run, int64_t steps, SeededBatch& batch) {
  constexpr int64_t kWarmup = 2;
  Engine& engine = *run.engine;
  if (!engine.idle()) return invalid_argument("bench: the engine has requests");
  if (steps < 1 || run.context < 1 || run.sequences < 1) return invalid_argument("bench: sequences, context and steps are at least 1");
  if (run.sequences > engine.options().max_seqs) {
    return invalid_argument(fmt::format("bench: {} sequences, the engine computes {} together", run.sequences, engine.options().max_seqs));
  }
  // The first sequences decode while the prompts of the last are computed: they need tokens for that, too.
  const int64_t prefill_steps = run.sequences * (run.context / engine.options().prefill_chunk + 1);
  for (int64_t s = 0; s < run.sequences; ++s) {
    DSV4_RETURN_IF_ERROR(batch.add(seeded_request(engine, run.context, s, prefill_steps + 2 * (steps + kWarmup))));
  }
  while (!batch.all_decode()) DSV4_RETURN_IF_ERROR(batch.step().status());
  for (int64_t i = 0; i < kWarmup; ++i) DSV4_RETURN_IF_ERROR(batch.step().status());
  return ok_status();
}

Status look_at_operators(Engine& engine, int64_t steps, SeededBatch& batch, StepTiming* out) {
  Eager eager;
  const ScopedObserver observe(engine, &eager);
  OpTally tally(engine.device());
  for (int64_t i = 0; i < steps; ++i) DSV4_RETURN_IF_ERROR(batch.step().status());
  DSV4_ASSIGN_OR_RETURN(out->ops, tally.ops(steps));
  return ok_status();
}

}  // namespace

Result<std::vector<StepTiming>> time_decode(std::span<const DecodeRun> runs, int64_t steps) {
  std::vector<std::unique_ptr<SeededBatch>> batches;
  for (const DecodeRun& run : runs) {
    batches.push_back(std::make_unique<SeededBatch>(*run.engine));
    DSV4_RETURN_IF_ERROR(prepare(run, steps, *batches.back()));
  }
  std::vector<std::vector<double>> times(runs.size());
  for (int64_t done = 0; done < steps; done += kRoundSteps) {
    for (size_t r = 0; r < runs.size(); ++r) {
      for (int64_t i = done; i < std::min(steps, done + kRoundSteps); ++i) {
        DSV4_ASSIGN_OR_RETURN(const double seconds, batches[r]->step());
        times[r].push_back(seconds);
      }
    }
  }
  std::vector<StepTiming> all(runs.size());
  for (size_t r = 0; r < runs.size(); ++r) {
    StepTiming& out = all[r];
    out.shape = {"decode", runs[r].sequences, runs[r].context, runs[r].sequences};
    set_times(std::move(times[r]), &out);
    DSV4_RETURN_IF_ERROR(look_at_operators(*runs[r].engine, std::max<int64_t>(1, steps / 2), *batches[r], &out));
    if (batches[r]->ended()) return numerical_error("bench: a sequence ended before the last measured step");
    out.tokens = batches[r]->tokens();
  }
  return all;
}

Result<StepTiming> time_prefill(Engine& engine, int64_t rows, int64_t repeats) {
  if (!engine.idle()) return invalid_argument("bench: the engine has requests");
  if (rows < 1 || repeats < 1) return invalid_argument("bench: rows and repeats are at least 1");
  if (rows > engine.options().prefill_chunk)
    return invalid_argument(fmt::format("bench: a prompt of {} rows is more than one chunk of {}", rows, engine.options().prefill_chunk));
  StepTiming out;
  out.shape = {"prefill", 1, 0, rows};
  std::vector<double> times;
  for (int64_t i = 0; i <= repeats + 1; ++i) {  // the first warms up, the last is looked at operator by operator
    SeededBatch batch(engine);
    DSV4_RETURN_IF_ERROR(batch.add(seeded_request(engine, rows, 1000 + i, 2)));
    if (i <= repeats) {
      DSV4_ASSIGN_OR_RETURN(const double seconds, batch.step());
      if (i > 0) times.push_back(seconds);
    } else {
      DSV4_RETURN_IF_ERROR(look_at_operators(engine, 1, batch, &out));
    }
    if (!batch.all_decode()) return numerical_error("bench: a prompt of one chunk took more than one step");
  }
  set_times(std::move(times), &out);
  return out;
}

std::vector<RooflineReport::BatchGain> RooflineReport::batch_gains() const {
  std::vector<BatchGain> gains;
  for (const StepTiming& one : timings) {
    if (one.shape.kind != "decode" || one.shape.sequences != 1) continue;
    for (const StepTiming& many : timings) {
      if (many.shape.kind != "decode" || many.shape.sequences == 1 || many.shape.context != one.shape.context) continue;
      const double n = static_cast<double>(many.shape.sequences);
      const double bytes = static_cast<double>(one.cost().bytes), rate = bytes / one.median;
      const double extra = static_cast<double>(many.bytes_of("moe_experts") - one.bytes_of("moe_experts"));
      gains.push_back({many.shape.sequences, many.shape.context, n * one.median / many.median, n * one.median / (many.median - extra / rate),
                       n * bytes / static_cast<double>(many.cost().bytes)});
    }
  }
  return gains;
}

}  // namespace dsv4
