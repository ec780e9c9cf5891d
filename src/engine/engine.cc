#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/log.h"
#include "engine/sampler.h"
#include "engine/state_identity.h"
#include "engine/stop_matcher.h"
#include "text/utf8_stream.h"

namespace dsv4 {

namespace {

constexpr int64_t kMinBranch = 32;    // tokens that prompts must share beyond what is saved for a state to be saved where they part
constexpr int64_t kMinDiskGain = 32;  // tokens that a state on disk must save beyond one in memory

}  // namespace

struct Engine::Sequence {
  uint64_t id = 0;
  Request request;
  OutputSink sink;
  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t computed = 0;         // tokens in the cache
  int32_t slot = -1;
  uint64_t seed = 0;
  Utf8Stream utf8;
  StopMatcher stops{{}};
  bool stops_active = true;  // not yet: request.stop_after_token is still to come
  bool finished = false;
  int64_t cached = 0;  // prompt tokens taken from a saved state
  int64_t branch = 0;  // where the prompt parts from all that are known; 0 = nowhere of interest

  std::span<const int32_t> generated() const { return std::span(tokens).subspan(request.prompt.size()); }
};

Engine::Engine(Checkpoint checkpoint, std::unique_ptr<Device> device, const EngineOptions& options)
    : checkpoint_(std::move(checkpoint)), device_(std::move(device)), options_(options) {}

Engine::~Engine() {
  if (store_ == nullptr) return;
  for (const int32_t slot : prefixes_.ids()) write_to_disk(slot);
}

Result<std::unique_ptr<Engine>> Engine::create(Checkpoint checkpoint, std::unique_ptr<Device> device, const EngineOptions& options,
                                               const ProgressSink& progress) {
  std::unique_ptr<Engine> engine(new Engine(std::move(checkpoint), std::move(device), options));
  EngineOptions& o = engine->options_;
  const ModelConfig& config = engine->config();
  if (o.max_seqs < 1) return invalid_argument("engine: max_seqs is " + std::to_string(o.max_seqs) + ", at least 1 is needed");
  if (o.prefill_chunk == 0) {
    const DeviceInfo& info = engine->device_->info();
    o.prefill_chunk = suitable_chunk(info.prefill_rows, info.expert_rows, config.num_experts, config.num_experts_per_token);
  }
  if (o.prefill_chunk < 1) return invalid_argument("engine: prefill_chunk is " + std::to_string(o.prefill_chunk) + ", at least 1 is needed");
  if (o.arithmetic == Arithmetic::kExact && o.cache_format != RowFormat::kF32) {
    return invalid_argument("engine: exact arithmetic needs the f32 cache, not fp8_ds_mla");
  }
  if (o.max_context_tokens == 0) o.max_context_tokens = std::min<int64_t>(config.max_positions, 32768);
  if (o.max_logits_rows == 0) o.max_logits_rows = std::max<int64_t>(8, o.max_seqs);
  if (o.prefix_states < 0) return invalid_argument("engine: prefix_states is " + std::to_string(o.prefix_states) + ", it must not be negative");
  if (o.cache_tokens == 0) o.cache_tokens = o.max_seqs * o.max_context_tokens;
  const int64_t max_rows = o.prefill_chunk + o.max_seqs;
  const int32_t num_slots = o.max_seqs + o.prefix_states;

  const std::string& directory = engine->checkpoint_.directory();
  if (!directory.empty()) {
    auto tokenizer = Tokenizer::load(directory + "/tokenizer.json");
    if (tokenizer.ok()) {
      engine->tokenizer_ = std::move(*tokenizer);
    } else if (tokenizer.status().code() != StatusCode::kNotFound) {
      return tokenizer.status();
    }
  }
  DSV4_ASSIGN_OR_RETURN(engine->weights_, load_weights(engine->checkpoint_, *engine->device_, progress));
  DSV4_ASSIGN_OR_RETURN(engine->model_, Model::create(config, *engine->weights_, {o.arithmetic, max_rows, o.max_logits_rows}, *engine->device_));
  DSV4_ASSIGN_OR_RETURN(engine->cache_,
                        KvCache::create(config, {o.cache_format, num_slots, o.max_context_tokens, o.cache_tokens, o.prefill_chunk}, *engine->device_));
  DSV4_ASSIGN_OR_RETURN(engine->runner_, StepRunner::create(*engine->model_, *engine->cache_, *engine->device_, o.graph));
  engine->worth_disk_.assign(static_cast<size_t>(num_slots), 0);
  if (!o.cache_directory.empty()) {
    if (o.prefix_states == 0) return invalid_argument("engine: a cache_directory needs prefix_states above 0");
    const std::string identity = state_identity(engine->checkpoint_, *engine->device_, o.arithmetic, *engine->cache_);
    DSV4_ASSIGN_OR_RETURN(engine->store_, PrefixStore::open({o.cache_directory, o.cache_bytes, identity}));
  }
  for (int32_t slot = num_slots - 1; slot >= 0; --slot) engine->free_slots_.push_back(slot);
  return engine;
}

Result<uint64_t> Engine::submit(Request request, OutputSink sink) {
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) return invalid_argument("request: the prompt has no tokens");
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= config().vocab_size) {
      return invalid_argument("request: token " + std::to_string(id) + " is not below the vocabulary's " + std::to_string(config().vocab_size));
    }
  }
  if (request.max_new_tokens < 0) return invalid_argument("request: max_new_tokens is " + std::to_string(request.max_new_tokens) + ", it must not be negative");
  if (prompt_tokens + (request.max_new_tokens > 0 ? 1 : 0) > options_.max_context_tokens) {
    return resource_limit("request: the prompt has " + std::to_string(prompt_tokens) + " tokens, the context holds " +
                          std::to_string(options_.max_context_tokens) + " with the answer");
  }
  if (request.num_logprobs > config().vocab_size) return invalid_argument("request: more logprobs than the vocabulary has tokens");
  DSV4_RETURN_IF_ERROR(validate(request.sampling, config().vocab_size).with_context("request"));

  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->seed = request.sampling.seed ? *request.sampling.seed : (uint64_t{std::random_device{}()} << 32 | std::random_device{}());
  sequence->tokens = request.prompt;
  sequence->stops = StopMatcher(request.stop);
  sequence->stops_active = request.stop_after_token < 0;
  sequence->request = std::move(request);
  sequence->sink = std::move(sink);
  const uint64_t id = sequence->id;
  waiting_.push_back(std::move(sequence));
  return id;
}

void Engine::cancel(uint64_t request_id) {
  for (auto& sequence : waiting_) {
    if (sequence->id == request_id && !sequence->finished) finish(*sequence, FinishReason::kCancelled);
  }
  for (auto& sequence : running_) {
    if (sequence->id == request_id && !sequence->finished) finish(*sequence, FinishReason::kCancelled);
  }
  if (!delivering_) remove_finished();  // a sink may cancel: step() removes when it is through
}

void Engine::remove_finished() {
  const auto finished = [](const auto& s) { return s->finished; };
  std::erase_if(waiting_, finished);
  std::erase_if(running_, finished);
}

bool Engine::forget_oldest_state() {
  const std::optional<int32_t> slot = prefixes_.oldest();
  if (!slot) return false;
  write_to_disk(*slot);
  prefixes_.erase(*slot);
  cache_->clear(*slot);
  free_slots_.push_back(*slot);
  return true;
}

std::optional<int32_t> Engine::take_slot() {
  if (free_slots_.empty() && !forget_oldest_state()) return std::nullopt;
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

Status Engine::reserve(int32_t slot, int64_t tokens) {
  for (;;) {
    Status room = cache_->reserve(slot, tokens);
    if (room.ok() || !forget_oldest_state()) return room;
  }
}

Status Engine::resume_from_prefix(Sequence& s) {
  // All but the last token at most: its logits are needed. A hook wants every position's.
  if (options_.prefix_states == 0 || s.request.logits_hook || s.tokens.size() < 2) return ok_status();
  const auto known = std::span<const int32_t>(s.tokens).first(s.tokens.size() - 1);
  const auto match = prefixes_.find(known);
  const int64_t in_memory = match ? match->num_tokens : 0;
  const auto on_disk = store_ != nullptr ? store_->find(known) : std::nullopt;
  if (on_disk && on_disk->num_tokens >= in_memory + kMinDiskGain && resume_from_disk(s, *on_disk)) {
    save_state(s);                                        // the next one finds it in memory
  } else if (const auto still = prefixes_.find(known)) {  // the attempt may have cost it its place
    const Status copied = cache_->copy_slot(still->id, s.slot, still->num_tokens);
    if (!copied.ok() && copied.code() != StatusCode::kResourceLimit) return copied;
    if (copied.ok()) {
      worth_disk_[static_cast<size_t>(still->id)] = 1;  // it was of use
      resumed(s, still->num_tokens);
    }  // else it is computed again
  }
  const int64_t shared = std::max(prefixes_.shared(known), store_ != nullptr ? store_->shared(known) : 0);
  s.branch = shared >= s.computed + kMinBranch ? shared : 0;
  return ok_status();
}

void Engine::resumed(Sequence& s, int64_t tokens) {
  s.computed = tokens;
  s.cached = std::min<int64_t>(tokens, static_cast<int64_t>(s.request.prompt.size()));
  stats_.cached_tokens += s.cached;
  ++stats_.prefix_hits;
}

bool Engine::resume_from_disk(Sequence& s, const PrefixTree::Match& match) {
  const auto bytes = store_->read(match.id);
  Status loaded = bytes.status();
  if (loaded.ok()) loaded = reserve(s.slot, match.num_tokens);
  if (loaded.ok()) loaded = cache_->load_slot(s.slot, match.num_tokens, *bytes);
  if (!loaded.ok()) {
    cache_->clear(s.slot);
    return false;
  }
  ++stats_.disk_hits;
  resumed(s, match.num_tokens);
  return true;
}

void Engine::write_to_disk(int32_t slot) {
  if (store_ == nullptr || worth_disk_[static_cast<size_t>(slot)] == 0) return;
  std::vector<int32_t> tokens = prefixes_.tokens_of(slot);
  if (store_->contains(tokens)) return;
  auto bytes = cache_->save_slot(slot, static_cast<int64_t>(tokens.size()));
  if (bytes.ok()) store_->write(std::move(tokens), std::move(*bytes));
}

// States are saved while a prompt is computed: at multiples of the chunk and where it parts from known ones (prompts that begin alike
// find them), and before the last token (the same prompt again finds it).
int64_t Engine::next_save_point(const Sequence& s) const {
  if (options_.prefix_states == 0 || s.request.logits_hook) return 0;
  const int64_t before_last = static_cast<int64_t>(s.request.prompt.size()) - 1;
  if (s.computed >= before_last) return 0;
  const int64_t chunk_end = std::min(before_last, (s.computed / options_.prefill_chunk + 1) * options_.prefill_chunk);
  return s.branch > s.computed ? std::min(s.branch, chunk_end) : chunk_end;
}

void Engine::save_state(Sequence& s) {
  const auto tokens = std::span<const int32_t>(s.tokens).first(static_cast<size_t>(s.computed));
  if (prefixes_.contains(tokens)) return;
  const std::optional<int32_t> slot = take_slot();
  if (!slot) return;
  if (cache_->copy_slot(s.slot, *slot, s.computed).ok()) {
    prefixes_.insert(tokens, *slot);
    // Of a long prompt's chunk ends only every power of two goes to disk unless it is used again: all of them together are then at most
    // about as large as the last state, which holds the whole prompt.
    const int64_t chunks = s.computed / options_.prefill_chunk;
    const bool at_chunk_end = s.computed % options_.prefill_chunk == 0 && s.computed + 1 != static_cast<int64_t>(s.request.prompt.size());
    worth_disk_[static_cast<size_t>(*slot)] = !at_chunk_end || (chunks & (chunks - 1)) == 0;
  } else {
    cache_->clear(*slot);
    free_slots_.push_back(*slot);
  }
}

// Gives the slot back, or leaves it to the prefix cache as the state after all computed tokens.
void Engine::release_slot(Sequence& s, bool keep_state) {
  if (s.slot < 0) return;
  const auto tokens = std::span<const int32_t>(s.tokens).first(static_cast<size_t>(s.computed));
  if (keep_state && options_.prefix_states > 0 && !tokens.empty() && !prefixes_.contains(tokens)) {
    while (prefixes_.size() >= options_.prefix_states) forget_oldest_state();
    prefixes_.insert(tokens, s.slot);
    worth_disk_[static_cast<size_t>(s.slot)] = 1;
  } else {
    cache_->clear(s.slot);
    free_slots_.push_back(s.slot);
  }
  s.slot = -1;
}

// Oldest waiting first; a sequence enters when there is a place and its known tokens fit the pools.
void Engine::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_seqs) {
    Sequence& sequence = *waiting_.front();
    const std::optional<int32_t> slot = take_slot();
    DSV4_CHECK(slot.has_value(), "a sequence that may run has a slot");
    sequence.slot = *slot;
    Status room = resume_from_prefix(sequence);
    if (room.ok()) room = reserve(*slot, static_cast<int64_t>(sequence.tokens.size()));
    if (!room.ok()) {
      release_slot(sequence, false);
      sequence.computed = 0;
      if (!running_.empty()) return;  // room comes when others end
      finish(sequence, FinishReason::kError, room);
      waiting_.pop_front();
      continue;
    }
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::preempt(size_t running_index) {
  std::unique_ptr<Sequence> sequence = std::move(running_[running_index]);
  running_.erase(running_.begin() + static_cast<int64_t>(running_index));
  release_slot(*sequence, false);
  sequence->computed = 0;  // computed again later: the same bits, whatever the chunks
  ++stats_.preemptions;
  waiting_.push_front(std::move(sequence));
}

Status Engine::make_room() {
  for (size_t i = 0; i < running_.size(); ++i) {
    for (;;) {
      const Status room = reserve(running_[i]->slot, static_cast<int64_t>(running_[i]->tokens.size()));
      if (room.ok()) break;
      if (running_.size() == 1) {
        finish(*running_[0], FinishReason::kError, room);
        remove_finished();
        return ok_status();
      }
      preempt(running_.size() - 1);
      if (i == running_.size()) return ok_status();  // it was the youngest itself
    }
  }
  return ok_status();
}

Status Engine::step() {
  const auto start = std::chrono::steady_clock::now();
  Status status = compute_step();
  stats_.step_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return status;
}

Status Engine::compute_step() {
  admit();
  DSV4_RETURN_IF_ERROR(make_room());
  if (running_.empty()) return ok_status();

  std::vector<SequenceView> views;
  int64_t decode_rows = 0;
  for (const auto& s : running_) {
    views.push_back({s->slot, static_cast<int64_t>(s->tokens.size()), s->computed, static_cast<bool>(s->request.logits_hook), next_save_point(*s)});
    decode_rows += views.back().known_tokens - views.back().computed_tokens == 1 ? 1 : 0;
  }
  const int64_t chunk = decode_rows > 0 && options_.prompts_give_way ? governor_.limit(options_.prefill_chunk) : options_.prefill_chunk;
  const BatchPlan plan = plan_step(views, {options_.prefill_chunk + options_.max_seqs, options_.max_logits_rows, chunk});

  input_.clear();
  input_.cu_rows.push_back(0);
  bool want_logits = false;
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *running_[static_cast<size_t>(p.index)];
    for (int64_t i = p.first; i < p.first + p.count; ++i) {
      const bool wanted = s.request.logits_hook || (p.sample && i + 1 == p.first + p.count);
      if (wanted) {
        input_.logits_rows.push_back(static_cast<int32_t>(input_.token_ids.size()));
        input_.draws.push_back(p.sample && stays_on_device(s.request) ? draw_of(s.request.sampling, s.seed, s.generated().size()) : Draw{});
      }
      input_.token_ids.push_back(s.tokens[static_cast<size_t>(i)]);
      input_.positions.push_back(static_cast<int32_t>(i));
      input_.slots.push_back(s.slot);
    }
    want_logits |= (p.sample && !stays_on_device(s.request)) || s.request.logits_hook;
    input_.cu_rows.push_back(static_cast<int32_t>(input_.token_ids.size()));
    input_.seq_slots.push_back(s.slot);
  }
  std::vector<uint64_t> row_requests;
  if (judge_ != nullptr) {
    for (const PlannedSequence& p : plan.sequences)
      row_requests.insert(row_requests.end(), static_cast<size_t>(p.count), running_[static_cast<size_t>(p.index)]->id);
    DSV4_RETURN_IF_ERROR(judge_->begin_step({input_, row_requests, config(), *cache_}));
  }
  StepObserver* const observer = judge_ != nullptr ? judge_ : observer_;
  const auto start = std::chrono::steady_clock::now();
  auto output = runner_->run(input_, want_logits, observer);
  if (!output.ok()) {
    fail_all(output.status());
    return output.status();
  }
  ++stats_.steps;
  if (observer == nullptr) {
    governor_.observe(decode_rows, std::max<int64_t>(0, plan.num_rows - decode_rows),
                      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

  const size_t vocab = static_cast<size_t>(config().vocab_size);
  size_t row = 0;
  delivering_ = true;
  for (const PlannedSequence& p : plan.sequences) {
    Sequence& s = *running_[static_cast<size_t>(p.index)];
    const int64_t save_point = next_save_point(s);
    s.computed += p.count;
    Status verdict = judge_ != nullptr && !s.finished ? judge_->verdict(s.id) : ok_status();
    if (s.computed == save_point && !s.finished && verdict.ok()) save_state(s);
    stats_.prompt_tokens += std::max<int64_t>(0, std::min(s.computed, static_cast<int64_t>(s.request.prompt.size())) - p.first);
    const auto logits_of = [&](size_t r) { return want_logits ? std::span(output->logits).subspan(r * vocab, vocab) : std::span<float>(); };
    if (s.request.logits_hook) {
      for (int64_t i = 0; i < p.count; ++i) s.request.logits_hook(p.first + i, logits_of(row++));
    }
    const size_t last = p.sample && !s.request.logits_hook ? row++ : row - 1;
    if (s.finished) continue;  // cancelled by another request's sink
    if (!verdict.ok()) {
      finish(s, FinishReason::kError, std::move(verdict));
      continue;
    }
    if (!p.sample) continue;
    if (s.request.max_new_tokens == 0) {
      finish(s, FinishReason::kLength);
      continue;
    }
    if (output->tokens[last] < 0) {
      finish(s, FinishReason::kError,
             numerical_error("request " + std::to_string(s.id) + ": the logits at position " + std::to_string(s.computed - 1) +
                             (s.request.sampling.temperature > 0 ? " hold a NaN or infinity" : " hold a NaN")));
      continue;
    }
    const bool chosen = stays_on_device(s.request);
    Result<int32_t> token = output->tokens[last];
    if (!chosen) {
      std::vector<float> changed(logits_of(last).begin(), logits_of(last).end());
      token = sample_token(s.request.sampling, s.request.constraint.get(), {changed, s.request.prompt, s.generated(), s.seed});
    }
    if (token.ok() && s.request.constraint != nullptr) {
      if (Status accepted = s.request.constraint->accept(*token); !accepted.ok()) token = accepted;
    }
    if (token.ok() && judge_ != nullptr) {
      if (Status judged = judge_->chosen(s.id, s.computed, *token); !judged.ok()) token = judged;
    }
    if (token.ok()) {
      deliver(s, *token, chosen ? std::span<float>() : logits_of(last));
    } else {
      finish(s, FinishReason::kError, token.status().with_context("request " + std::to_string(s.id)));
    }
  }
  delivering_ = false;
  remove_finished();
  return ok_status();
}

void Engine::deliver(Sequence& s, int32_t token, std::span<const float> raw_logits) {
  s.tokens.push_back(token);
  ++stats_.generated_tokens;
  TokenOutput out;
  out.request_id = s.id;
  out.token = token;
  out.num_cached_tokens = s.cached;
  if (s.request.num_logprobs >= 0) {
    LogprobRow row = logprobs_of(raw_logits, token, s.request.num_logprobs);
    out.logprob = row.chosen;
    out.top_logprobs = std::move(row.top);
  }
  const bool eos = token == config().eos_token_id && !s.request.ignore_eos;
  if (tokenizer_ && !eos && !(s.request.skip_special && tokenizer_->is_special(token))) {
    const std::string text = s.utf8.feed(tokenizer_->token_bytes(token));
    out.text = s.stops_active ? s.stops.feed(text) : text;
  }
  s.stops_active |= token == s.request.stop_after_token;
  FinishReason reason = FinishReason::kNone;
  if (eos) {
    reason = FinishReason::kEos;
  } else if (s.stops.stopped()) {
    reason = FinishReason::kStop;
  } else if (static_cast<int64_t>(s.generated().size()) >= s.request.max_new_tokens) {
    reason = FinishReason::kLength;
  } else if (static_cast<int64_t>(s.tokens.size()) >= options_.max_context_tokens) {
    reason = FinishReason::kContext;
  }
  if (reason != FinishReason::kNone) {
    if (!s.stops.stopped()) {
      out.text += s.stops.feed(s.utf8.flush());
      out.text += s.stops.flush();
    }
    out.finish = reason;
    out.stop_text = s.stops.found();
    out.seed = s.seed;
    s.finished = true;
    release_slot(s, true);
  }
  if (s.sink) s.sink(out);
}

void Engine::finish(Sequence& s, FinishReason reason, Status error) {
  TokenOutput out;
  out.request_id = s.id;
  out.text = s.stops.feed(s.utf8.flush()) + s.stops.flush();
  out.finish = reason;
  out.error = std::move(error);
  out.seed = s.seed;
  out.num_cached_tokens = s.cached;
  s.finished = true;
  // In the middle of a step's deliveries the slot may be ahead of `computed`.
  release_slot(s, reason != FinishReason::kError && !delivering_);
  if (s.sink) s.sink(out);
}

void Engine::fail_all(const Status& error) {
  for (auto& s : running_) finish(*s, FinishReason::kError, error);
  for (auto& s : waiting_) finish(*s, FinishReason::kError, error);
  remove_finished();
}

EngineStats Engine::stats() const {
  EngineStats out = stats_;
  out.waiting = static_cast<int64_t>(waiting_.size());
  out.running = static_cast<int64_t>(running_.size());
  out.prefix_states = prefixes_.size();
  if (store_ != nullptr) {
    const PrefixStore::Stats disk = store_->stats();
    out.disk_states = disk.states;
    out.disk_bytes = disk.bytes;
    out.disk_damaged = disk.damaged;
  }
  out.ratio4_blocks = cache_->pool(4).num_blocks();
  out.ratio4_blocks_free = cache_->pool(4).num_free();
  out.ratio128_blocks = cache_->pool(128).num_blocks();
  out.ratio128_blocks_free = cache_->pool(128).num_free();
  out.cache_bytes = cache_->size_bytes();
  out.scratch_bytes = model_->scratch_bytes();
  out.free_device_bytes = device_->free_bytes();
  const KvLayout& layout = cache_->layout();
  out.cache_bytes_per_token =
      static_cast<double>(layout.ratio4_block_bytes) / (4 * kCacheBlockRows) + static_cast<double>(layout.ratio128_block_bytes) / (128 * kCacheBlockRows);
  out.wait_seconds = runner_->wait_seconds();
  return out;
}

Result<Generation> generate(Engine& engine, Request request) {
  Generation out;
  Status error;
  const auto id = engine.submit(std::move(request), [&](const TokenOutput& o) {
    if (o.token >= 0) out.tokens.push_back(o.token);
    out.text += o.text;
    out.finish = o.finish;
    if (o.finish == FinishReason::kError) error = o.error;
    out.outputs.push_back(o);
  });
  DSV4_RETURN_IF_ERROR(id.status());
  while (out.finish == FinishReason::kNone) DSV4_RETURN_IF_ERROR(engine.step());
  DSV4_RETURN_IF_ERROR(error);
  return out;
}

}  // namespace dsv4
