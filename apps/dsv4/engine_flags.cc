#include "engine_flags.h"

#include <CLI/CLI.hpp>

#include "open_device.h"
#include "progress_bar.h"

namespace dsv4 {

void add_engine_flags(CLI::App& command, const CommandContext& context, EngineFlags* f) {
  f->model = context.default_model;
  command.add_option("--model,-m", f->model, "checkpoint directory, or synthetic:flash, synthetic:k160, synthetic:tiny")->capture_default_str();
  command.add_option("--layers", f->layers, "use only the first N layers (-1 = all)")->capture_default_str();
  command.add_option("--weights-seed", f->weights_seed, "seed of synthetic weights")->capture_default_str();
  command.add_option("--backend", f->device.backend, "auto, cpu, gpu or reference")->capture_default_str();
  command.add_option("--threads,-t", f->device.num_threads, "host threads; 0 = one per core")->capture_default_str();
  command.add_flag("--pin", f->device.pin_threads, "bind threads to cores");
  command.add_option("--isa", f->device.isa, "cpu: force scalar, avx2 or avx512");
  command.add_flag("--huge-pages", f->device.huge_pages, "cpu: ask for 2 MiB pages behind buffers");
  command.add_option("--numa", f->device.numa, "cpu: interleave memory over all NUMA nodes, or the number of the node to take it from");
  command.add_option("--gpu", f->device.gpu_index, "gpu: index of the device")->capture_default_str();
  command.add_option("--arithmetic", f->arithmetic, "qat (w8a8: as trained and served), w8a16, emulation (plain products) or exact")->capture_default_str();
  command.add_option("--cache", f->cache, "fp8_ds_mla, or f32 (the oracle's)")->capture_default_str();
  command.add_option("--graph", f->graph, "decode steps on devices with graphs: full, piecewise (attention between graphs) or eager")->capture_default_str();
  command.add_option("--context", f->engine.max_context_tokens, "most tokens of one sequence; 0 = min(model's limit, 32768)")->capture_default_str();
  command.add_option("--chunk", f->engine.prefill_chunk, "prompt tokens per step; 0 = what suits device and model")->capture_default_str();
  command.add_option("--max-seqs", f->engine.max_seqs, "sequences computed together")->capture_default_str();
  command.add_flag("--prefault", f->prefault, "read all weights before starting");
  command.add_flag("--mlock", f->mlock, "keep the weights in memory");
  command.add_flag("--quiet,-q", f->quiet, "no progress bar");
}

Result<EngineOptions> engine_options(const EngineFlags& flags) {
  EngineOptions options = flags.engine;
  const std::optional<Arithmetic> arithmetic = arithmetic_named(flags.arithmetic);
  if (!arithmetic) return invalid_argument("--arithmetic is \"" + flags.arithmetic + "\", it must be " + kArithmeticNames);
  options.arithmetic = *arithmetic;
  if (flags.cache == "f32") {
    options.cache_format = RowFormat::kF32;
  } else if (flags.cache != "fp8_ds_mla") {
    return invalid_argument("--cache is \"" + flags.cache + "\": DeepSeek V4 caches are fp8_ds_mla (fp8), or f32 as the oracle's");
  }
  if (options.arithmetic == Arithmetic::kExact && options.cache_format != RowFormat::kF32) {
    return invalid_argument("--arithmetic exact needs --cache f32: fp8_ds_mla rounds");
  }
  const std::optional<GraphMode> graph = graph_mode_named(flags.graph);
  if (!graph) return invalid_argument("--graph is \"" + flags.graph + "\", it must be full, piecewise or eager");
  options.graph = *graph;
  return options;
}

CheckpointOptions checkpoint_options(const EngineFlags& flags, ProgressSink progress) {
  CheckpointOptions options;
  options.num_layers = flags.layers;
  options.prefault = flags.prefault;
  options.mlock = flags.mlock;
  options.seed = flags.weights_seed;
  options.progress = std::move(progress);
  return options;
}

void add_validate_flags(CLI::App& command, EngineFlags* f) {
  command.add_flag("--validate", f->validate, "check every tensor of every step and stop a request at the first wrong value");
  command.add_option("--dump-dir", f->dump_dir, "with --validate: where the first failure leaves its tensors (safetensors)");
}

std::unique_ptr<Validator> make_validator(const EngineFlags& flags, Engine& engine) {
  if (!flags.validate) return nullptr;
  return std::make_unique<Validator>(engine, ValidateOptions{.dump_dir = flags.dump_dir});
}

Result<std::unique_ptr<Engine>> make_engine(const EngineFlags& flags, const Checkpoint* opened) {
  DSV4_ASSIGN_OR_RETURN(const EngineOptions options, engine_options(flags));
  ProgressBar bar(!flags.quiet);
  // The device first: its memory policy is to hold for the weights' pages too, and it may make synthetic weights itself.
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_device(flags.device));
  if (opened != nullptr) return Engine::create(*opened, std::move(device), options, bar.sink());
  CheckpointOptions opening = checkpoint_options(flags, bar.sink());
  opening.generate_on_device = device->generates();
  DSV4_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(flags.model, opening));
  return Engine::create(std::move(checkpoint), std::move(device), options, bar.sink());
}

}  // namespace dsv4
