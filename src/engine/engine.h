// The engine: a model on a device, a cache, and the sequences that share them. One thread drives it: submit, then step until idle.
// Continuous batching: sequences join and leave between steps; what a sequence gets never depends on its company.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "cache/prefix_store.h"
#include "cache/prefix_tree.h"
#include "checkpoint/checkpoint.h"
#include "engine/chunk_governor.h"
#include "engine/request.h"
#include "engine/step_judge.h"
#include "engine/step_runner.h"
#include "text/tokenizer.h"

namespace dsv4 {

struct EngineOptions {
  Arithmetic arithmetic = Arithmetic::kQat;
  RowFormat cache_format = RowFormat::kFp8DsMla;
  int64_t max_context_tokens = 0;          // of one sequence, prompt and answer; 0 = min(the model's limit, 32768)
  int32_t max_seqs = 8;                    // sequences computed together
  int64_t cache_tokens = 0;                // tokens whose compressed rows all sequences share; 0 = max_seqs * max_context_tokens
  int64_t prefill_chunk = 0;               // prompt rows of a step, 0 = what suits device and model (suitable_chunk); fewer while others decode
                                           // (engine/chunk_governor.h)
  int64_t max_logits_rows = 0;             // logits rows of a step; 0 = max_seqs (at least 8)
  int32_t prefix_states = 16;              // saved states of earlier prompts and answers (prefix cache); 0 = off
  std::string cache_directory;             // saved states on disk, which survive the process; empty = none
  int64_t cache_bytes = int64_t{8} << 30;  // most bytes of those; the least recently used go
  bool prompts_give_way = true;            // to decoding rows (engine/chunk_governor.h); false: whole chunks always, as measurements want
  GraphMode graph = GraphMode::kFull;      // devices without graphs run eagerly
};

struct EngineStats {
  int64_t waiting = 0, running = 0;
  int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0;
  int64_t cached_tokens = 0, prefix_hits = 0, prefix_states = 0;             // tokens not computed again; lookups that found a state; states kept
  int64_t disk_hits = 0, disk_states = 0, disk_bytes = 0, disk_damaged = 0;  // states taken from disk; kept there; files that were damaged
  int64_t ratio4_blocks = 0, ratio4_blocks_free = 0;
  int64_t ratio128_blocks = 0, ratio128_blocks_free = 0;
  int64_t cache_bytes = 0, scratch_bytes = 0;
  int64_t free_device_bytes = 0;              // 0 = unknown
  double cache_bytes_per_token = 0;           // compressed rows of one more token of context
  double step_seconds = 0, wait_seconds = 0;  // in step(), and of that waiting for the device
};

class Engine {
 public:
  // Loads weights onto `device`. The checkpoint's directory gives the tokenizer; without one (synthetic models) requests are token
  // ids and outputs have no text.
  static Result<std::unique_ptr<Engine>> create(Checkpoint checkpoint, std::unique_ptr<Device> device, const EngineOptions& options,
                                                const ProgressSink& progress = {});
  ~Engine();

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelConfig& config() const { return checkpoint_.config(); }
  const EngineOptions& options() const { return options_; }
  Device& device() { return *device_; }
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

  // Checks the request and queues it. `sink` is called from step() with each token and once with the end. Errors (nothing queued):
  // kInvalidArgument; kResourceLimit when the prompt is longer than the context.
  Result<uint64_t> submit(Request request, OutputSink sink);
  // Ends a request; its sink sees kCancelled now. Unknown ids (already ended) are ignored. May be called from a sink.
  void cancel(uint64_t request_id);

  bool idle() const { return waiting_.empty() && running_.empty(); }
  // Computes one step. A fault of one row ends that request with kError; a device fault ends all and is returned.
  Status step();

  // Sees every step's tensors from now on (null = none). Steps run eagerly while it is set.
  void set_observer(StepObserver* observer) { observer_ = observer; }
  // The same for a judge, which may end requests; it takes the observer's place (null = none).
  void set_judge(StepJudge* judge) { judge_ = judge; }
  EngineStats stats() const;

 private:
  struct Sequence;

  Engine(Checkpoint checkpoint, std::unique_ptr<Device> device, const EngineOptions& options);
  Status compute_step();
  void admit();
  // Room for all known tokens of running sequences: forgets saved states, oldest first, then preempts the youngest sequences.
  Status make_room();
  Status reserve(int32_t slot, int64_t tokens);  // forgets saved states until it fits
  bool forget_oldest_state();                    // false when there is none
  std::optional<int32_t> take_slot();            // an empty slot; may forget a saved state
  // Starts a new sequence from the longest saved state of its tokens.
  Status resume_from_prefix(Sequence& sequence);
  // The same from the state `match` on disk; false: it is not to be had.
  bool resume_from_disk(Sequence& sequence, const PrefixTree::Match& match);
  void resumed(Sequence& sequence, int64_t tokens);
  void write_to_disk(int32_t slot);  // a saved state, if it is worth it
  int64_t next_save_point(const Sequence& sequence) const;
  void save_state(Sequence& sequence);  // a copy of the running sequence's state
  void release_slot(Sequence& sequence, bool keep_state);
  void preempt(size_t running_index);
  void deliver(Sequence& sequence, int32_t token, std::span<const float> raw_logits);
  void finish(Sequence& sequence, FinishReason reason, Status error = {});
  void fail_all(const Status& error);
  void remove_finished();

  Checkpoint checkpoint_;
  std::unique_ptr<Device> device_;
  EngineOptions options_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<StepRunner> runner_;
  StepObserver* observer_ = nullptr;
  StepJudge* judge_ = nullptr;

  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest first
  std::vector<int32_t> free_slots_;                 // neither running nor a saved state
  PrefixTree prefixes_;                             // saved states; ids are slots
  std::vector<char> worth_disk_;                    // [slot] of saved states: written to disk before they are forgotten
  std::unique_ptr<PrefixStore> store_;
  uint64_t next_id_ = 1;
  EngineStats stats_;
  StepInput input_;
  ChunkGovernor governor_;
  bool delivering_ = false;  // sinks are being called
};

// Submits one request and steps until it ends. Errors of the request are returned.
struct Generation {
  std::vector<int32_t> tokens;  // the end-of-sequence token included
  std::string text;
  std::vector<TokenOutput> outputs;
  FinishReason finish = FinishReason::kNone;
};
Result<Generation> generate(Engine& engine, Request request);

}  // namespace dsv4
