#include "engine/chunk_governor.h"

#include <algorithm>

namespace dsv4 {

double ChunkGovernor::Recent::median() const {
  std::array<double, kMost> sorted = values_;
  const auto end = sorted.begin() + std::min(count_, kMost), middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

void ChunkGovernor::observe(int64_t decode_rows, int64_t prompt_rows, double seconds) {
  if (prompt_rows == 0) {
    if (decode_rows > 0) decode_seconds_.add(seconds);
    return;
  }
  if (decode_rows == 0) {
    if (!from_mixed_) prompt_row_seconds_.add(seconds / static_cast<double>(prompt_rows));
    return;
  }
  if (!decode_seconds_.known()) return;  // its share of the step is not known
  if (!from_mixed_) prompt_row_seconds_.clear();
  from_mixed_ = true;
  // A step faster than decoding alone: the rows came as good as free, which a small positive number says.
  prompt_row_seconds_.add(std::max(seconds - decode_seconds_.median(), 0.01 * seconds) / static_cast<double>(prompt_rows));
}

int64_t ChunkGovernor::limit(int64_t chunk) const {
  if (!decode_seconds_.known() || !prompt_row_seconds_.known()) return chunk;
  const double rows = (kSlowdown - 1) * decode_seconds_.median() / prompt_row_seconds_.median();
  if (rows >= static_cast<double>(chunk)) return chunk;
  return std::min(chunk, std::max(kLeast, static_cast<int64_t>(rows)));
}

}  // namespace dsv4
