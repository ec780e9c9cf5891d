// The choice of indexer_topk from scores: one block per token. Three passes over digits of 11, 11 and 10 bits of the order-keeping form find the
// topk-th largest score; then the chosen rows are written in ascending order: each lane group owns a contiguous range, counts, and writes behind the
// groups before it. Ties at the threshold go to the lowest rows. Exact on any input. Scores are read once into shared memory when they fit.
// Up to kShortRows rows one pass is enough: what shares the threshold's top digit is few, and is ranked by comparing all with all.
// Latency-bound up to some thousand rows, then by one multiprocessor's reads.
#include "backends/gpu/portable/indexer_topk.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 1024;
constexpr int kGroups = kThreads / kGroupLanes;
constexpr int kBins = 2048;
constexpr int kBinsPerThread = kBins / kThreads;
constexpr int kHeldRows = 24 * 1024;  // 96 KiB

struct SelectArgs {
  const uint32_t* scores;
  SequenceRows rows;
  int ratio;
  int64_t first_token;
  int64_t max_rows;
  int topk;
  int held_rows;
  Rows<int32_t> indices;
};

// Sum of the totals of the groups before this one. All groups call; kGroups == kGroupLanes.
static_assert(kGroups == kGroupLanes);
__device__ uint32_t groups_before(const uint32_t* totals) {
  uint32_t mine = group_lane() < group_index() ? totals[group_lane()] : 0u;
  for (int m = kGroupLanes / 2; m > 0; m /= 2) mine += shuffle_xor(mine, m);
  return mine;
}

// What the block shares.
struct Choice {
  uint32_t histogram[kBins];
  uint32_t group_total[kGroups], group_equal[kGroups];
  uint32_t chosen_digit, still_needed;
};

// The highest bin, from the top, with which `needed` rows are reached, and how many of its own are; empties the histogram. All threads call after a
// barrier; one follows.
__device__ void choose_bin(Choice& c, uint32_t needed) {
  const int tid = static_cast<int>(threadIdx.x), lane = group_lane(), group = group_index();
  // Thread i looks at bins downwards from the top: bin kBins - 1 - kBinsPerThread * i and below.
  uint32_t bins[kBinsPerThread], mine = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    bins[i] = c.histogram[kBins - 1 - kBinsPerThread * tid - i];
    mine += bins[i];
  }
  uint32_t through = mine;
  for (int step = 1; step < kGroupLanes; step *= 2) {
    const uint32_t other = shuffle_from(through, lane < step ? lane : lane - step);
    if (lane >= step) through += other;
  }
  if (lane == kGroupLanes - 1) c.group_total[group] = through;
  __syncthreads();
  uint32_t before = through - mine + groups_before(c.group_total);
  if (before < needed && before + mine >= needed) {
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      if (before < needed && before + bins[i] >= needed) {
        c.chosen_digit = static_cast<uint32_t>(kBins - 1 - kBinsPerThread * tid - i);
        c.still_needed = needed - before;
      }
      before += bins[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) c.histogram[kBins - 1 - kBinsPerThread * tid - i] = 0;
  __syncthreads();
}

constexpr int kShortRows = 4 * kThreads;
constexpr int kTopShift = 21;
constexpr uint32_t kMaxRivals = kThreads;

struct Short {
  uint32_t taken[kShortRows / kGroupLanes];  // a bit per row
  uint2 rivals[kMaxRivals];                  // score and row of those in the threshold's bin
  uint32_t num_rivals;
};

// Both lie before the held rows in dynamic shared memory.
constexpr int kChoiceWords = (sizeof(Choice) + 15) / 16 * 4, kShortWords = (sizeof(Short) + 15) / 16 * 4;

// At most kShortRows rows, more than topk. False: too many rivals, nothing written, the histogram empty.
__device__ bool select_short(const uint32_t* scores, int count, int topk, int32_t* out, Choice& c, Short& s) {
  constexpr int kHeld = kShortRows / kThreads;
  const int tid = static_cast<int>(threadIdx.x), lane = group_lane(), group = group_index();
  uint32_t v[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) v[i] = tid + i * kThreads < count ? scores[tid + i * kThreads] : 0u;
  if (tid == 0) s.num_rivals = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (tid + i * kThreads < count) atomicAdd(&c.histogram[v[i] >> kTopShift], 1u);
  }
  __syncthreads();
  choose_bin(c, static_cast<uint32_t>(topk));
  const uint32_t digit = c.chosen_digit, needed = c.still_needed;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const bool inside = tid + i * kThreads < count;
    const uint32_t above = group_ballot(inside && v[i] >> kTopShift > digit);
    if (lane == 0) s.taken[i * kGroups + group] = above;
    if (inside && v[i] >> kTopShift == digit) {
      const uint32_t at = atomicAdd(&s.num_rivals, 1u);
      if (at < kMaxRivals) s.rivals[at] = {v[i], static_cast<uint32_t>(tid + i * kThreads)};
    }
  }
  __syncthreads();
  const uint32_t rivals = s.num_rivals;
  if (rivals > kMaxRivals) return false;
  if (static_cast<uint32_t>(tid) < rivals) {
    const uint2 mine = s.rivals[tid];
    uint32_t rank = 0;
    for (uint32_t r = 0; r < rivals; ++r) {
      const uint2 other = s.rivals[r];
      rank += other.x > mine.x || (other.x == mine.x && other.y < mine.y) ? 1u : 0u;
    }
    if (rank < needed) atomicOr(&s.taken[mine.y / kGroupLanes], 1u << (mine.y % kGroupLanes));
  }
  __syncthreads();
  // A group writes kHeld words of rows, behind the words before them.
  uint32_t before = 0, words[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int word = i * kGroups + lane;
    if (word < group * kHeld) before += __popc(s.taken[word]);
    words[i] = s.taken[group * kHeld + i];
  }
  for (int m = kGroupLanes / 2; m > 0; m /= 2) before += shuffle_xor(before, m);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if ((words[i] >> lane & 1u) != 0) out[before + __popc(words[i] & ((1u << lane) - 1u))] = (group * kHeld + i) * kGroupLanes + lane;
    before += __popc(words[i]);
  }
  return true;
}

__global__ void __launch_bounds__(kThreads) select_rows(SelectArgs a) {
  extern __shared__ uint32_t raw[];
  Choice& c = *reinterpret_cast<Choice*>(raw);
  Short& few = *reinterpret_cast<Short*>(raw + kChoiceWords);
  uint32_t* const held = raw + kChoiceWords + kShortWords;
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) c.histogram[i] = 0;
  __syncthreads();
  wait_previous();
  allow_next();
  const int64_t t = a.first_token + blockIdx.x;
  const int64_t count = index_rows(a.rows.positions[t], a.ratio, a.max_rows);
  int32_t* out = a.indices.row(t);
  const int tid = static_cast<int>(threadIdx.x), lane = group_lane(), group = group_index();
  if (count <= a.topk) {
    for (int i = tid; i < a.topk; i += kThreads) out[i] = i < count ? i : -1;
    return;
  }
  const uint32_t* scores = a.scores + static_cast<int64_t>(blockIdx.x) * a.max_rows;
  if (count <= kShortRows && select_short(scores, static_cast<int>(count), a.topk, out, c, few)) return;
  if (count <= a.held_rows) {
    for (int64_t j = tid; j < count; j += kThreads) held[j] = scores[j];
    scores = held;
  }

  uint32_t threshold = 0, mask = 0, needed = static_cast<uint32_t>(a.topk);
  constexpr int kShift[3] = {21, 10, 0};
  constexpr uint32_t kDigits[3] = {2047, 2047, 1023};
#pragma unroll
  for (int pass = 0; pass < 3; ++pass) {
    for (int64_t j = tid; j < count; j += kThreads) {
      const uint32_t v = scores[j];
      if ((v & mask) == threshold) atomicAdd(&c.histogram[v >> kShift[pass] & kDigits[pass]], 1u);
    }
    __syncthreads();
    choose_bin(c, needed);
    threshold |= c.chosen_digit << kShift[pass];
    mask |= kDigits[pass] << kShift[pass];
    needed = c.still_needed;
  }

  // `needed` rows equal to the threshold are taken, the lowest ones.
  const int64_t per_group = (count + kGroups - 1) / kGroups;
  const int64_t begin = group * per_group, end = begin + per_group < count ? begin + per_group : count;
  uint32_t above_here = 0, equal_here = 0;
  for (int64_t j = begin; j < end; j += kGroupLanes) {
    const uint32_t v = j + lane < end ? scores[j + lane] : 0u;
    above_here += __popc(group_ballot(v > threshold));
    equal_here += __popc(group_ballot(j + lane < end && v == threshold));
  }
  if (lane == 0) {
    c.group_total[group] = above_here;
    c.group_equal[group] = equal_here;
  }
  __syncthreads();
  uint32_t above_before = groups_before(c.group_total), equal_before = groups_before(c.group_equal);
  for (int64_t j = begin; j < end; j += kGroupLanes) {
    const bool inside = j + lane < end;
    const uint32_t v = inside ? scores[j + lane] : 0u;
    const uint32_t above_bits = group_ballot(v > threshold), equal_bits = group_ballot(inside && v == threshold);
    const uint32_t lower = (1u << lane) - 1u;
    const uint32_t above_rank = above_before + __popc(above_bits & lower), equal_rank = equal_before + __popc(equal_bits & lower);
    const bool taken = inside && (v > threshold || (v == threshold && equal_rank < needed));
    if (taken) out[above_rank + (equal_rank < needed ? equal_rank : needed)] = static_cast<int32_t>(j + lane);
    above_before += __popc(above_bits);
    equal_before += __popc(equal_bits);
  }
}

}  // namespace

Status select_topk(GpuContext& gpu, const IndexerTopkArgs& a, const uint32_t* scores, int64_t first_token, int64_t tokens) {
  const int held = static_cast<int>(a.max_rows < kHeldRows ? a.max_rows : kHeldRows);
  const SelectArgs args = {scores, a.rows, a.ratio, first_token, a.max_rows, static_cast<int>(a.indices.cols), held, rows_of(a.indices)};
  return launch(gpu, "indexer_topk (select)", select_rows, {.blocks_x = tokens, .threads = kThreads, .shared_bytes = 4 * (kChoiceWords + kShortWords + held)},
                args);
}

}  // namespace dsv4::gpu
