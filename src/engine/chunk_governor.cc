#include "engine/chunk_governor.h"

#include <algorithm>

namespace dsv4 {
namespace {

// The last ten steps or so count; one that was disturbed does not decide.
constexpr double kWeight = 0.2;

void blend(double* mean, double value) { *mean = *mean == 0 ? value : *mean + kWeight * (value - *mean); }

}  // namespace

void ChunkGovernor::observe(int64_t decode_rows, int64_t prompt_rows, double seconds) {
  if (prompt_rows == 0) {
    if (decode_rows > 0) blend(&decode_seconds_, seconds);
    return;
  }
  if (decode_rows == 0) {
    if (!from_mixed_) blend(&prompt_row_seconds_, seconds / static_cast<double>(prompt_rows));
    return;
  }
  if (decode_seconds_ == 0) return;  // its share is not known
  if (!from_mixed_) prompt_row_seconds_ = 0;
  from_mixed_ = true;
  // A step faster than decoding alone: the rows came as good as free, which a small positive number says.
  blend(&prompt_row_seconds_, std::max(seconds - decode_seconds_, 0.01 * seconds) / static_cast<double>(prompt_rows));
}

int64_t ChunkGovernor::limit(int64_t chunk) const {
  if (decode_seconds_ == 0 || prompt_row_seconds_ == 0) return chunk;
  const double rows = (kSlowdown - 1) * decode_seconds_ / prompt_row_seconds_;
  if (rows >= static_cast<double>(chunk)) return chunk;
  return std::min(chunk, std::max(kLeast, static_cast<int64_t>(rows)));
}

}  // namespace dsv4
