// indexer_topk over packed keys: scores on tensor cores (index_scores.h), then the choice: few tokens in long contexts by a cluster of blocks each
// (cluster_select.h), others by a block each (portable/select_topk.cu).
//
// Queries are three bfloat16 terms, prepared once per block in shared memory; all but the first are skipped where the query is already E2M1, which one
// term holds exactly. Blocks take tiles of 128 keys in turn, so short contexts spread too. Bound by reading the keys in long contexts, by latency in
// short ones.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/activation.h"
#include "backends/gpu/sm90/cluster_select.h"
#include "backends/gpu/sm90/index_scores.h"

namespace dsv4::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTileKeys = kWarps * kWarpKeys;

struct ScoreArgs {
  Rows<const float> q, w;
  float weight_scale;
  int heads;  // a multiple of 16
  SequenceRows rows;
  int ratio;
  PagedRows keys;
  BlockTable table;
  int64_t first_token;
  int64_t max_rows;
  int topk;
  int64_t score_stride;  // of a token
  uint32_t* scores;
};

__global__ void __launch_bounds__(kThreads) index_scores_mma(const __grid_constant__ ScoreArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];  // queries [3 terms][heads / 16], then weights [heads]
  __shared__ int more_terms;
  wait_previous();
  allow_next();
  const int64_t t = a.first_token + blockIdx.y;
  const int64_t count = index_rows(a.rows.positions[t], a.ratio, a.max_rows);
  if (count <= a.topk || static_cast<int64_t>(blockIdx.x) * kTileKeys >= count) return;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int head_tiles = a.heads / 16, term_bytes = head_tiles * kQueryTileBytes;
  float* weights = reinterpret_cast<float*>(shared + 3 * term_bytes);
  if (tid == 0) more_terms = 0;
  __syncthreads();
  // A thread makes both steps of a word.
  const auto put_terms = [&](int first, int last) {
    bool rest = false;
#pragma unroll 4
    for (int i = tid; i < head_tiles * kIndexSteps * 32; i += kThreads) {
      const int l = i / 2 % 32, word = i / 64 % (kIndexSteps / 2), head = i / (kIndexSteps * 32) * 16 + l / 4 + 8 * (i % 2);
      const float* q = a.q.row(t) + static_cast<int64_t>(head) * kIndexDim + 32 * (l % 4) + word * 8;
      const float4 near = load_four(q), far = load_four(q + 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[4] = {half == 0 ? near.x : near.z, half == 0 ? far.x : far.z, half == 0 ? near.y : near.w, half == 0 ? far.y : far.w};
#pragma unroll
        for (int term = 0; term < 3; ++term) {
          const uint32_t low = bf16_pair(v[0], v[1]), high = bf16_pair(v[2], v[3]);
          if (term >= first && term < last) *query_place(shared + term * term_bytes, head, 2 * word + half, l % 4) = {low, high};
          v[0] -= __uint_as_float(low << 16);
          v[1] -= __uint_as_float(low & 0xffff0000u);
          v[2] -= __uint_as_float(high << 16);
          v[3] -= __uint_as_float(high & 0xffff0000u);
          if (term == 0) rest |= v[0] != 0 || v[1] != 0 || v[2] != 0 || v[3] != 0;
        }
      }
    }
    return rest;
  };
  if (put_terms(0, 1)) more_terms = 1;
  for (int i = tid; i < a.heads; i += kThreads) weights[i] = __fmul_rn(a.weight_scale, a.w.row(t)[i]);
  __syncthreads();
  const int terms = more_terms != 0 ? 3 : 1;
  if (terms == 3) {
    put_terms(1, 3);
    __syncthreads();
  }
  const uint8_t* const queries = shared + lane * 16;
  uint32_t* const scores = a.scores + blockIdx.y * a.score_stride;

  for (int64_t tile0 = static_cast<int64_t>(blockIdx.x) * kTileKeys; tile0 < count; tile0 += static_cast<int64_t>(gridDim.x) * kTileKeys) {
    const int64_t key0 = tile0 + warp * kWarpKeys;
    if (key0 >= count) continue;
    const IndexKeys keys = fetch_index_keys(a.keys, index_block(a.keys, a.table, a.rows.slots[t], key0), key0, count, lane);
    score_index_keys<1>(keys, queries, terms, term_bytes, head_tiles, weights, key0, count, lane, [&](int64_t key, uint32_t score) { scores[key] = score; });
  }
}

struct ClusterArgs {
  const uint32_t* scores;
  int64_t score_stride;
  SequenceRows rows;
  int ratio;
  int64_t max_rows;
  int topk;
  Rows<int32_t> indices;
};

// A cluster per token.
__global__ void __launch_bounds__(kSelectThreads) select_rows_cluster(const __grid_constant__ ClusterArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  ClusterChoice& choice = *reinterpret_cast<ClusterChoice*>(shared);
  uint32_t* const held = reinterpret_cast<uint32_t*>(shared + sizeof(ClusterChoice));
  const uint32_t rank = cluster_rank();
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t t = blockIdx.y, count = index_rows(a.rows.positions[t], a.ratio, a.max_rows);
  int32_t* const out = a.indices.row(t);
  if (count > a.topk) {
    clear_choice(choice);
    cluster_arrive();
  }
  wait_previous();
  allow_next();
  if (count <= a.topk) {
    for (int i = static_cast<int>(rank) * kSelectThreads + tid; i < a.topk; i += kSelectBlocks * kSelectThreads) out[i] = i < count ? i : -1;
    return;
  }
  const int64_t per = select_rows_per_block(count), first = rank * per < count ? rank * per : count;
  const int n = static_cast<int>(first + per < count ? per : count - first);
  const uint4* const from = reinterpret_cast<const uint4*>(a.scores + t * a.score_stride + first);
  for (int i = tid; 4 * i < n; i += kSelectThreads) reinterpret_cast<uint4*>(held)[i] = from[i];
  cluster_wait();
  select_in_cluster<kSelectBlocks>(choice, held, n, static_cast<int>(first), a.topk, out, rank);
}

}  // namespace

Status indexer_topk_strips(OpContext& context, const IndexerTopkArgs& a) {
  if (a.q.rows == 0) return ok_status();
  if (!packed_index_keys(a.keys) || a.heads % 16 != 0 || a.heads > 64 || a.max_rows <= a.indices.cols) return indexer_topk_portable(context, a);
  GpuContext& gpu = gpu_context(context);
  // One block chooses among some thousand rows as fast as sixteen, and more tokens than these fill the device.
  constexpr int64_t kOneBlockRows = 4096, kClusterTokens = 16;
  const int64_t held_bytes = 4 * select_rows_per_block(a.max_rows) + static_cast<int64_t>(sizeof(ClusterChoice));
  const int64_t batch = score_batch(a);
  const bool clusters = a.max_rows > kOneBlockRows && a.q.rows <= kClusterTokens && batch == a.q.rows && held_bytes <= gpu.properties.shared_bytes_per_block;
  const int64_t stride = clusters ? (a.max_rows + 3) / 4 * 4 : a.max_rows;
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(4 * batch * stride));
  auto* scores = reinterpret_cast<uint32_t*>(scratch);
  const int shared = static_cast<int>(3 * a.heads / 16 * kQueryTileBytes + 4 * a.heads), topk = static_cast<int>(a.indices.cols);
  for (int64_t first = 0; first < a.q.rows; first += batch) {
    const int64_t tokens = a.q.rows - first < batch ? a.q.rows - first : batch;
    const ScoreArgs args = {rows_of(a.q), rows_of(a.w), a.weight_scale, static_cast<int>(a.heads), a.rows, a.ratio, a.keys, a.table, first, a.max_rows,
                            topk,         stride,       scores};
    const int64_t tiles = ceil_div(a.max_rows, kTileKeys), most = ceil_div(4 * gpu.properties.multiprocessors, tokens);
    DSV4_RETURN_IF_ERROR(launch(gpu, "indexer_topk (scores)", index_scores_mma,
                                {.blocks_x = tiles < most ? tiles : most, .blocks_y = tokens, .threads = kThreads, .shared_bytes = shared}, args));
    if (!clusters) {
      DSV4_RETURN_IF_ERROR(select_topk(gpu, a, scores, first, tokens));
      continue;
    }
    DSV4_RETURN_IF_ERROR(allow_large_clusters(reinterpret_cast<const void*>(select_rows_cluster)));
    const ClusterArgs choose = {scores, stride, a.rows, a.ratio, a.max_rows, topk, rows_of(a.indices)};
    DSV4_RETURN_IF_ERROR(launch(
        gpu, "indexer_topk (select)", select_rows_cluster,
        {.blocks_x = kSelectBlocks, .blocks_y = tokens, .threads = kSelectThreads, .shared_bytes = static_cast<int>(held_bytes), .cluster = kSelectBlocks},
        choose));
  }
  return ok_status();
}

}  // namespace dsv4::gpu
