// dsv4 bench cpu: whole steps on the CPU backend against what this machine can do. First the logits of a few tokens are held against the
// reference backend, and what one sequence gets in a batch against what it gets alone; a wrong answer ends the command before or instead
// of its numbers.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/machine_peaks.h"
#include "bench/roofline.h"
#include "command.h"
#include "engine_factory.h"
#include "verify/numbers.h"

namespace dsv4 {
namespace {

constexpr double kReferenceBound = 1e-4;  // exact arithmetic, relative; float32 sums against double ones

struct BenchCpuFlags {
  EngineFlags engine;
  std::vector<int64_t> batches = {1, 8};
  std::vector<int64_t> contexts = {256};
  std::vector<int64_t> prefills = {512};
  int64_t steps = 24;
  int64_t verify_tokens = 4;
  double seconds = 0.5;
  std::string json;
};

// Logits of every position of a short prompt, without roundings that a last bit could turn over.
Result<std::vector<float>> exact_logits(const EngineFlags& base, const char* backend, int64_t tokens) {
  EngineFlags flags = base;
  flags.device.backend = backend;
  if (flags.device.backend == "reference") flags.device.isa.clear();
  flags.arithmetic = "exact";
  flags.cache = "f32";
  flags.engine.max_seqs = 1;
  flags.engine.max_context_tokens = 256;
  flags.engine.prefix_states = 0;
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(flags));
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<int32_t>((31 + i * 7919) % engine->config().vocab_size));
  std::vector<float> all;
  DSV4_RETURN_IF_ERROR(prefill_logits(*engine, prompt, [&](int64_t, std::span<const float> logits) { all.insert(all.end(), logits.begin(), logits.end()); }));
  return all;
}

Result<Peaks> measure_peaks(Engine& engine, double seconds) {
  DSV4_ASSIGN_OR_RETURN(const MachinePeaks p, measure_machine_peaks(engine.device().context(), seconds));
  return Peaks{p.read_bytes_per_second, p.flops_per_second};
}

// The first sequence of a context gets the same tokens in every batch.
Status check_company(const std::vector<StepTiming>& timings) {
  for (const StepTiming& a : timings) {
    for (const StepTiming& b : timings) {
      if (a.shape.context != b.shape.context) continue;
      const auto common = static_cast<std::ptrdiff_t>(std::min(a.tokens.size(), b.tokens.size()));
      if (std::equal(a.tokens.begin(), a.tokens.begin() + common, b.tokens.begin())) continue;
      return numerical_error(fmt::format("a sequence of {} tokens got other tokens in a batch of {} than in one of {}: nothing of this run counts",
                                         a.shape.context, b.shape.sequences, a.shape.sequences));
    }
  }
  return ok_status();
}

Status run_bench_cpu(BenchCpuFlags& flags, CommandContext&) {
  RooflineReport report;
  if (flags.verify_tokens > 0) {
    DSV4_ASSIGN_OR_RETURN(const std::vector<float> want, exact_logits(flags.engine, "reference", flags.verify_tokens));
    DSV4_ASSIGN_OR_RETURN(const std::vector<float> got, exact_logits(flags.engine, "cpu", flags.verify_tokens));
    report.reference_error = relative_error(got, want);
    if (!(report.reference_error <= kReferenceBound)) {
      return numerical_error(
          fmt::format("the CPU backend's logits differ from the reference's by {:.2e} (relative), at most {:.0e} is right: nothing was timed",
                      report.reference_error, kReferenceBound));
    }
  }
  EngineFlags engine_flags = flags.engine;
  engine_flags.device.backend = "cpu";
  engine_flags.engine.max_seqs = static_cast<int32_t>(*std::max_element(flags.batches.begin(), flags.batches.end()));
  engine_flags.engine.prefill_chunk = *std::max_element(flags.prefills.begin(), flags.prefills.end());
  engine_flags.engine.prefix_states = 0;  // every prompt is cold
  engine_flags.engine.prompts_give_way = false;
  const int64_t longest = std::max(engine_flags.engine.prefill_chunk, *std::max_element(flags.contexts.begin(), flags.contexts.end()));
  engine_flags.engine.max_context_tokens = longest + 2 * flags.steps + engine_flags.engine.max_seqs * (longest / engine_flags.engine.prefill_chunk + 2) + 64;
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(engine_flags));
  report.manifest = make_manifest(*engine, "bench cpu");
  DSV4_ASSIGN_OR_RETURN(Peaks before, measure_peaks(*engine, flags.seconds));
  // The machine may have neighbours: steps are judged by the peaks just before and just after them.
  const auto keep = [&](std::vector<StepTiming> timings) -> Status {
    DSV4_ASSIGN_OR_RETURN(const Peaks after, measure_peaks(*engine, flags.seconds));
    for (StepTiming& timing : timings) {
      timing.peaks = {(before.bytes_per_second + after.bytes_per_second) / 2, (before.flops_per_second + after.flops_per_second) / 2};
      fmt::print(stderr, "{}: {:.1f} tok/s\n", timing.shape.name(), timing.tokens_per_second());
      report.timings.push_back(std::move(timing));
    }
    before = after;
    return ok_status();
  };
  {
    std::vector<std::unique_ptr<Engine>> engines;  // one for each shape, on the same weights
    std::vector<DecodeRun> runs;
    for (const int64_t context : flags.contexts) {
      for (const int64_t sequences : flags.batches) {
        engine_flags.engine.max_seqs = static_cast<int32_t>(sequences);
        DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Engine> own, make_engine(engine_flags, &engine->checkpoint()));
        runs.push_back({own.get(), sequences, context});
        engines.push_back(std::move(own));
      }
    }
    DSV4_ASSIGN_OR_RETURN(std::vector<StepTiming> timings, time_decode(runs, flags.steps));
    DSV4_RETURN_IF_ERROR(check_company(timings));
    DSV4_RETURN_IF_ERROR(keep(std::move(timings)));
  }
  for (const int64_t rows : flags.prefills) {
    DSV4_ASSIGN_OR_RETURN(StepTiming timing, time_prefill(*engine, rows, 3));
    DSV4_RETURN_IF_ERROR(keep({std::move(timing)}));
  }
  fmt::print("{}\n{}", engine->device().info().name, to_text(report));
  return write_optional(flags.json, to_json(report));
}

}  // namespace

void add_bench_cpu_command(CLI::App& bench, CommandContext& context) {
  auto flags = std::make_shared<BenchCpuFlags>();
  CLI::App* command =
      bench.add_subcommand("cpu", "Decode and prefill steps on the CPU, operator by operator, against its measured read bandwidth and fma peak");
  add_engine_flags(*command, context, &flags->engine);
  command->add_option("MODEL", flags->engine.model, "the same as --model");
  command->add_option("--batches", flags->batches, "sequences decoded together, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--contexts", flags->contexts, "tokens of each sequence before the measured decode steps")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--prefill", flags->prefills, "rows of a prefill chunk")->delimiter(',')->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--steps", flags->steps, "decode steps to measure")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--verify-tokens", flags->verify_tokens, "tokens whose logits are compared with the reference backend first; 0 = none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seconds", flags->seconds, "time for each measure of the machine's peaks")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--json", flags->json, "write the measurements to this file");
  command->callback([flags, &context] {
    if (const Status status = run_bench_cpu(*flags, context); !status.ok()) report_error(context, "bench cpu", status);
  });
}

}  // namespace dsv4
