#include "engine/batch_plan.h"

#include <algorithm>

namespace dsv4 {

BatchPlan plan_step(const std::vector<SequenceView>& sequences, const StepLimits& limits) {
  BatchPlan plan;
  const auto add = [&](size_t index, int64_t count) {
    const SequenceView& s = sequences[index];
    const bool sample = s.computed_tokens + count == s.known_tokens;
    plan.sequences.push_back({static_cast<int32_t>(index), s.computed_tokens, count, sample});
    plan.num_rows += count;
    plan.num_logits += s.all_logits ? count : sample ? 1 : 0;
  };
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].known_tokens - sequences[i].computed_tokens == 1 && plan.num_rows < limits.max_rows && plan.num_logits < limits.max_logits) add(i, 1);
  }
  int64_t prefill_left = limits.prefill_chunk;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceView& s = sequences[i];
    const int64_t missing = s.known_tokens - s.computed_tokens;
    if (missing <= 1) continue;
    const int64_t logits_left = limits.max_logits - plan.num_logits;
    if (logits_left < 1) break;
    int64_t count = std::min({missing, limits.max_rows - plan.num_rows, prefill_left});
    if (s.all_logits) count = std::min(count, logits_left);
    if (s.chunk_end > s.computed_tokens) count = std::min(count, s.chunk_end - s.computed_tokens);
    if (count < 1) break;
    add(i, count);
    prefill_left -= count;
  }
  return plan;
}

int64_t suitable_chunk(int64_t prefill_rows, int64_t expert_rows, int64_t num_experts, int64_t experts_per_token) {
  constexpr int64_t kLeastChunk = 64;
  if (expert_rows == 0) return prefill_rows;
  const int64_t wanted = expert_rows * num_experts / std::max<int64_t>(experts_per_token, 1);
  return std::min(prefill_rows, std::max(wanted, kLeastChunk));
}

}  // namespace dsv4
