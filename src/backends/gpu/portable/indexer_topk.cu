// indexer_topk on any card. First launch: scores, a lane group per key row, heads in order. Second: one block per token selects with a radix search
// for the topk-th largest score (four passes over 8 bits of an order-keeping integer form), then writes the chosen rows in ascending order: each lane
// group owns a contiguous range, counts, and writes behind the groups before it. Ties at the threshold go to the lowest rows. Exact on any input.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/indexer_topk.h"
#include "backends/gpu/portable/paged.h"

namespace dsv4::gpu {
namespace {

constexpr int kScoreThreads = 256;
constexpr int kScoreGroups = kScoreThreads / kGroupLanes;
constexpr int kKeysPerBlock = 64;
constexpr int kSelectThreads = 1024;
constexpr int kSelectGroups = kSelectThreads / kGroupLanes;

struct ScoreArgs {
  Rows<const float> q, w;
  float weight_scale;
  int heads;
  int dim;
  SequenceRows rows;
  int ratio;
  PagedRows keys;
  BlockTable table;
  int64_t first_token;  // of this launch
  int64_t max_rows;
  uint32_t* scores;  // [tokens of this launch][max_rows], order-keeping form
};

__global__ void index_scores(ScoreArgs a) {
  extern __shared__ float keys[];  // [kScoreGroups][dim]
  wait_previous();
  allow_next();
  const int64_t t = a.first_token + blockIdx.y;
  const int64_t count = index_rows(a.rows.positions[t], a.ratio, a.max_rows);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kKeysPerBlock;
  float* key = keys + group_index() * a.dim;
  for (int64_t j = begin + group_index(); j < begin + kKeysPerBlock && j < count; j += kScoreGroups) {
    const RowPlace place = row_place(a.keys, a.table, a.rows.slots[t], j);
    for (int i = group_lane(); i < a.dim; i += kGroupLanes) key[i] = row_value(a.keys.format, place, i);
    float score = 0;
    for (int h = 0; h < a.heads; ++h) {
      const float* q = a.q.row(t) + static_cast<int64_t>(h) * a.dim;
      float dot = 0;
      for (int i = group_lane(); i < a.dim; i += kGroupLanes) dot += q[i] * key[i];
      score += a.weight_scale * a.w.row(t)[h] * fmaxf(group_sum(dot), 0.0f);
    }
    if (group_lane() == 0) a.scores[blockIdx.y * a.max_rows + j] = ordered_score(score);
  }
}

struct SelectArgs {
  const uint32_t* scores;
  SequenceRows rows;
  int ratio;
  int64_t first_token;
  int64_t max_rows;
  int topk;
  Rows<int32_t> indices;
};

__global__ void __launch_bounds__(kSelectThreads) select_rows(SelectArgs a) {
  __shared__ uint32_t histogram[256];
  __shared__ uint32_t chosen_digit, still_needed;
  __shared__ uint32_t above[kSelectGroups], equal[kSelectGroups];
  wait_previous();
  allow_next();
  const int64_t t = a.first_token + blockIdx.x;
  const int64_t count = index_rows(a.rows.positions[t], a.ratio, a.max_rows);
  int32_t* out = a.indices.row(t);
  const int tid = static_cast<int>(threadIdx.x), lane = group_lane();
  if (count <= a.topk) {
    for (int i = tid; i < a.topk; i += kSelectThreads) out[i] = i < count ? i : -1;
    return;
  }
  const uint32_t* scores = a.scores + static_cast<int64_t>(blockIdx.x) * a.max_rows;

  uint32_t threshold = 0, mask = 0, needed = static_cast<uint32_t>(a.topk);
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (tid < 256) histogram[tid] = 0;
    __syncthreads();
    for (int64_t j = tid; j < count; j += kSelectThreads) {
      const uint32_t v = scores[j];
      if ((v & mask) == threshold) atomicAdd(&histogram[v >> shift & 255u], 1u);
    }
    __syncthreads();
    if (group_index() == 0) {  // lane l looks at digits 255 - 8l downwards
      uint32_t mine = 0;
      for (int i = 0; i < 8; ++i) mine += histogram[255 - 8 * lane - i];
      uint32_t through = mine;
      for (int step = 1; step < kGroupLanes; step *= 2) {
        const uint32_t other = shuffle_from(through, lane - step < 0 ? lane : lane - step);
        if (lane >= step) through += other;
      }
      uint32_t before = through - mine;
      if (before < needed && through >= needed) {
        int digit = 255 - 8 * lane;
        while (before + histogram[digit] < needed) before += histogram[digit--];
        chosen_digit = static_cast<uint32_t>(digit);
        still_needed = needed - before;
      }
    }
    __syncthreads();
    threshold |= chosen_digit << shift;
    mask |= 255u << shift;
    needed = still_needed;
    __syncthreads();
  }

  // `needed` rows equal to the threshold are taken, the lowest ones.
  const int64_t per_group = (count + kSelectGroups - 1) / kSelectGroups;
  const int64_t begin = group_index() * per_group, end = begin + per_group < count ? begin + per_group : count;
  uint32_t above_here = 0, equal_here = 0;
  for (int64_t j = begin; j < end; j += kGroupLanes) {
    const uint32_t v = j + lane < end ? scores[j + lane] : 0u;
    above_here += __popc(group_ballot(j + lane < end && v > threshold));
    equal_here += __popc(group_ballot(j + lane < end && v == threshold));
  }
  if (lane == 0) {
    above[group_index()] = above_here;
    equal[group_index()] = equal_here;
  }
  __syncthreads();
  uint32_t above_before = 0, equal_before = 0;
  for (int g = 0; g < group_index(); ++g) {
    above_before += above[g];
    equal_before += equal[g];
  }
  for (int64_t j = begin; j < end; j += kGroupLanes) {
    const bool inside = j + lane < end;
    const uint32_t v = inside ? scores[j + lane] : 0u;
    const uint32_t above_bits = group_ballot(inside && v > threshold), equal_bits = group_ballot(inside && v == threshold);
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
  const SelectArgs args = {scores, a.rows, a.ratio, first_token, a.max_rows, static_cast<int>(a.indices.cols), rows_of(a.indices)};
  return launch(gpu, "indexer_topk", select_rows, {.blocks_x = tokens, .threads = kSelectThreads}, args);
}

Status indexer_topk_portable(OpContext& context, const IndexerTopkArgs& a) {
  if (a.q.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const int64_t batch = score_batch(a);
  DSV4_ASSIGN_OR_RETURN(uint8_t* scratch, gpu.scratch(4 * batch * a.max_rows));
  auto* scores = reinterpret_cast<uint32_t*>(scratch);
  for (int64_t first = 0; first < a.q.rows; first += batch) {
    const int64_t tokens = a.q.rows - first < batch ? a.q.rows - first : batch;
    const ScoreArgs args = {rows_of(a.q), rows_of(a.w), a.weight_scale, static_cast<int>(a.heads), a.keys.row_dim, a.rows, a.ratio, a.keys, a.table, first, a.max_rows, scores};
    // With no more rows than topk the choice is "all of them", whatever the scores.
    if (a.max_rows > a.indices.cols) {
      DSV4_RETURN_IF_ERROR(launch(gpu, "indexer_topk", index_scores,
                                  {.blocks_x = ceil_div(a.max_rows, kKeysPerBlock), .blocks_y = tokens, .threads = kScoreThreads, .shared_bytes = 4 * kScoreGroups * a.keys.row_dim},
                                  args));
    }
    DSV4_RETURN_IF_ERROR(select_topk(gpu, a, scores, first, tokens));
  }
  return ok_status();
}

}  // namespace dsv4::gpu
