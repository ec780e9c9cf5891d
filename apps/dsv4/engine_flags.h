// The flags of every command that runs a model, and the engine they make.
#pragma once

#include <memory>
#include <string>

#include "backends/registry.h"
#include "command.h"
#include "engine/engine.h"
#include "verify/validate.h"

namespace dsv4 {

struct EngineFlags {
  std::string model;
  std::string arithmetic = "qat";    // arithmetic_named()
  std::string cache = "fp8_ds_mla";  // fp8_ds_mla, f32
  std::string graph = "full";        // graph_mode_named()
  int64_t layers = -1;
  uint64_t weights_seed = 1;
  bool prefault = false;
  bool mlock = false;
  bool quiet = false;
  bool validate = false;
  std::string dump_dir;
  DeviceOptions device;
  EngineOptions engine;
};

// --model, --backend, --threads, --arithmetic, --cache, --context, --chunk, ... on `command`.
void add_engine_flags(CLI::App& command, const CommandContext& context, EngineFlags* flags);

// Opens the checkpoint and makes the engine, with a progress bar on a terminal. A cache type other than those two is refused with a
// message that names fp8_ds_mla.
// `opened`: instead of opening the flags' model again.
Result<std::unique_ptr<Engine>> make_engine(const EngineFlags& flags, const Checkpoint* opened = nullptr);

// Its two halves: the options, checked; and how the checkpoint is opened.
Result<EngineOptions> engine_options(const EngineFlags& flags);
CheckpointOptions checkpoint_options(const EngineFlags& flags, ProgressSink progress);

// --validate and --dump-dir on `command`, and the validator they ask for (null without --validate); it goes before the engine.
void add_validate_flags(CLI::App& command, EngineFlags* flags);
std::unique_ptr<Validator> make_validator(const EngineFlags& flags, Engine& engine);

}  // namespace dsv4
