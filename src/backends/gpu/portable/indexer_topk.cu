// indexer_topk on any card. First launch: scores, a lane group per key row, heads in order. Second: the choice (select_topk.cu).
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/indexer_topk.h"
#include "backends/gpu/portable/paged.h"

namespace dsv4::gpu {
namespace {

constexpr int kScoreThreads = 256;
constexpr int kScoreGroups = kScoreThreads / kGroupLanes;
constexpr int kKeysPerBlock = 64;

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

}  // namespace

Status indexer_topk_portable(OpContext& context, const IndexerTopkArgs& a) {
  if (a.q.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const int64_t batch = score_batch(a);
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(4 * batch * a.max_rows));
  auto* scores = reinterpret_cast<uint32_t*>(scratch);
  for (int64_t first = 0; first < a.q.rows; first += batch) {
    const int64_t tokens = a.q.rows - first < batch ? a.q.rows - first : batch;
    const ScoreArgs args = {rows_of(a.q), rows_of(a.w), a.weight_scale, static_cast<int>(a.heads), a.keys.row_dim, a.rows, a.ratio, a.keys, a.table,
                            first,        a.max_rows,   scores};
    // With no more rows than topk the choice is "all of them", whatever the scores.
    if (a.max_rows > a.indices.cols) {
      DSV4_RETURN_IF_ERROR(launch(
          gpu, "indexer_topk", index_scores,
          {.blocks_x = ceil_div(a.max_rows, kKeysPerBlock), .blocks_y = tokens, .threads = kScoreThreads, .shared_bytes = 4 * kScoreGroups * a.keys.row_dim},
          args));
    }
    DSV4_RETURN_IF_ERROR(select_topk(gpu, a, scores, first, tokens));
  }
  return ok_status();
}

}  // namespace dsv4::gpu
