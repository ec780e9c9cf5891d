// What one step computes, and the rules that choose it. Pure: a list of sequences in, rows out.
#pragma once

#include <cstdint>
#include <vector>

namespace dsv4 {

// A sequence as the scheduler sees it.
struct SequenceView {
  int32_t slot = -1;
  int64_t known_tokens = 0;     // prompt and generated so far
  int64_t computed_tokens = 0;  // of those, already in the cache
  bool all_logits = false;      // the logits of every position are wanted
  int64_t chunk_end = 0;        // a chunk stops here if it would cross it (a state is saved there); 0 = nowhere
};

// Rows [first, first + count) of sequence `index`: positions first .. first + count - 1.
struct PlannedSequence {
  int32_t index = 0;
  int64_t first = 0;
  int64_t count = 0;
  bool sample = false;  // these rows reach the last known token: a new token follows
};

struct BatchPlan {
  std::vector<PlannedSequence> sequences;  // decode rows first, then prefill chunks
  int64_t num_rows = 0;
  int64_t num_logits = 0;
};

struct StepLimits {
  int64_t max_rows = 256;       // of a step
  int64_t max_logits = 64;      // logits rows of a step
  int64_t prefill_chunk = 256;  // prefill rows of a step, all sequences together
};

// Every sequence that lacks one token gets its decode row; what is left of max_rows, at most prefill_chunk, goes to prompts in the
// order given. So a long prompt delays decoding by one chunk at most, and nobody waits for ever.
BatchPlan plan_step(const std::vector<SequenceView>& sequences, const StepLimits& limits);

// Prefill rows of a step that suit the device (DeviceInfo::prefill_rows, expert_rows) and the model's routed experts, at least 64.
int64_t suitable_chunk(int64_t prefill_rows, int64_t expert_rows, int64_t num_experts, int64_t experts_per_token);

}  // namespace dsv4
