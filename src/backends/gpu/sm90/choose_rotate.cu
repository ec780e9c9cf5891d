// indexer_query, indexer_topk and query_norm_rope of one token in one launch of clusters of 16 blocks.
//
// The first cluster norms and rotates the heads of q, a lane group each. The others choose. Their blocks make the index queries together, as operand A in
// each one's shared memory (E2M1 values: one bfloat16 term), and score keys (index_scores.h). Up to kClusterRows rows one cluster takes alone: scores go
// to its first block, which chooses. Beyond that as many clusters as there are rows for write scores to memory, and the one that is ready last reads
// them back, 1/16 in each block, and chooses as a cluster (cluster_select.h). Where everything is chosen nothing is scored.
// Lengths are the device's: the grid is that of the longest context, and clusters without rows end at once.
// Bound by latency: at most topk rows, one write; beyond, three cluster barriers, and six more where a cluster chooses. H200: 1.3 us with nothing to
// choose, 8.9 at 1,000 rows, 28 at 65,500, whose keys are 4.5 MB, 1 us of reading, and whose products are 2 us of the tensor cores.
#include <algorithm>

#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/query_heads.h"
#include "backends/gpu/sm90/activation.h"
#include "backends/gpu/sm90/cluster_select.h"
#include "backends/gpu/sm90/index_scores.h"

namespace dsv4::gpu {
namespace {

constexpr int kBlocks = kSelectBlocks;
constexpr int kThreads = kSelectThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kTileKeys = kWarps * kWarpKeys;
constexpr int64_t kClusterRows = 4096;  // that one cluster takes alone
constexpr int64_t kMostScorers = 8;     // clusters: about a block to each multiprocessor
constexpr int kMostHeads = 64;          // of the indexer
constexpr int kHeadRounds = 4;          // of 128 values in a head of q

struct ChooseArgs {
  Rows<const float> cos_sin;  // of q
  float* q;
  int heads;
  int rope;
  float eps;
  const float *index_q, *index_w, *index_cos_sin;
  float weight_scale;
  int index_heads;  // a multiple of 32
  int index_rope;
  const int32_t *positions, *slots;
  int ratio;
  PagedRows keys;
  BlockTable table;
  int64_t max_rows;
  int topk;
  int32_t* indices;
  uint32_t* scores;
  uint32_t* ticket;  // zero between launches
};

// The block's share of the index queries into operand form, in all blocks of the cluster; a warp per head. And the heads' weights.
__device__ void put_index_queries(const ChooseArgs& a, uint8_t* queries, float* weights, uint32_t rank, int warp, int lane) {
  const int here = a.index_heads / kBlocks, head = static_cast<int>(rank) * here + warp, tid = static_cast<int>(threadIdx.x);
  static_assert(kMostHeads / kBlocks <= kWarps);
  // All loads before the first use.
  float4 v = {0, 0, 0, 0};
  if (warp < here) v = *reinterpret_cast<const float4*>(a.index_q + head * kIndexDim + 4 * lane);
  const IndexTurn turn = index_turn(a.index_cos_sin, a.index_rope);
  const float weight = tid < a.index_heads ? a.index_w[tid] : 0.0f;
  cluster_wait();  // all blocks have begun
  if (tid < a.index_heads) weights[tid] = __fmul_rn(a.weight_scale, weight);
  if (warp >= here) return;
  v = index_head(v, turn, true);
  // Neighbours have the two halves of a word's eight values; each makes one of its two steps.
  const bool odd = lane % 2 != 0;
  const float x = shuffle_xor(odd ? v.x : v.z, 1), y = shuffle_xor(odd ? v.y : v.w, 1);
  uint2 pairs = odd ? uint2{bf16_pair(x, v.z), bf16_pair(y, v.w)} : uint2{bf16_pair(v.x, x), bf16_pair(v.y, y)};
  // What one term does not hold is infinite; its further terms are NaN, and so is the head's product.
  const float rest = (v.x - v.x) + (v.y - v.y) + (v.z - v.z) + (v.w - v.w);
  if (rest != 0) pairs = {0x7fff7fffu, 0x7fff7fffu};
  uint2* const to = query_place(queries, head, lane % 8, lane / 8);
#pragma unroll
  for (uint32_t r = 0; r < kBlocks; ++r) store_in_cluster(to, r, pairs);
}

__global__ void __launch_bounds__(kThreads, 2) choose_and_rotate(const __grid_constant__ ChooseArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t last;  // said by the first block: this cluster chooses
  const uint32_t rank = cluster_rank();
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int cluster = static_cast<int>(blockIdx.x) / kBlocks, scorer = cluster - 1;
  if (cluster == 0) {
    wait_previous();
    allow_next();
    for (int head = warp * kBlocks + static_cast<int>(rank); head < a.heads; head += kBlocks * kWarps) {
      norm_and_rotate_head<kHeadRounds>(a.q + head * (kHeadRounds * 128), a.cos_sin.row(0), a.rope, a.eps);
    }
    return;
  }
  const int64_t count = index_rows(a.positions[0], a.ratio, a.max_rows);  // no kernel writes positions
  if (count <= a.topk) {
    wait_previous();
    allow_next();
    if (scorer != 0) return;
    for (int i = static_cast<int>(rank) * kThreads + tid; i < a.topk; i += kBlocks * kThreads) a.indices[i] = i < count ? i : -1;
    return;
  }
  const int64_t wanted = (count + kClusterRows - 1) / kClusterRows, most = gridDim.x / kBlocks - 1;
  const int scorers = static_cast<int>(wanted < most ? wanted : most);
  if (scorer >= scorers) {
    wait_previous();
    allow_next();
    return;
  }

  ClusterChoice& choice = *reinterpret_cast<ClusterChoice*>(shared);
  uint8_t* const queries = shared + sizeof(ClusterChoice);
  float* const weights = reinterpret_cast<float*>(queries + a.index_heads / 16 * kQueryTileBytes);
  uint32_t* const held = reinterpret_cast<uint32_t*>(weights + a.index_heads);
  // The block's rows of a choice by the cluster; a cluster alone scores in the same shares.
  const int64_t per = select_rows_per_block(count), own_first = rank * per < count ? rank * per : count;
  const int n = static_cast<int>(own_first + per < count ? per : count - own_first);
  const bool alone = scorers == 1;
  const int64_t end = alone ? own_first + n : count, step = alone ? kTileKeys : static_cast<int64_t>(scorers) * kBlocks * kTileKeys;
  int64_t key0 = (alone ? own_first : static_cast<int64_t>(scorer * kBlocks + static_cast<int>(rank)) * kTileKeys) + warp * kWarpKeys;
  const int64_t slot = a.slots[0];
  // Block ids go two rounds ahead of the products, keys one: an id on the way would hold up all behind it.
  int32_t block = 0;
  if (key0 < end) {
    block = index_block(a.keys, a.table, slot, key0);  // no kernel writes tables
    const int64_t offset = static_cast<uint32_t>(key0) % static_cast<uint32_t>(a.keys.block_rows);
    if (lane < kWarpKeys / 2) prefetch_l2(a.keys.base + block * a.keys.block_stride_bytes + offset * (kIndexDim / 2) + 128 * lane);
  }
  clear_choice(choice);
  cluster_arrive();
  wait_previous();
  allow_next();
  IndexKeys keys;
  if (key0 < end) keys = fetch_index_keys(a.keys, block, key0, end, lane);
  if (key0 + step < end) block = index_block(a.keys, a.table, slot, key0 + step);
  put_index_queries(a, queries, weights, rank, warp, lane);
  cluster_arrive();
  cluster_wait();
  while (key0 < end) {
    const IndexKeys now = keys;
    const int64_t next = key0 + step;
    if (next < end) keys = fetch_index_keys(a.keys, block, next, end, lane);
    if (next + step < end) block = index_block(a.keys, a.table, slot, next + step);
    score_index_keys<2>(now, queries + lane * 16, 1, 0, a.index_heads / 16, weights, key0, end, lane, [&](int64_t key, uint32_t score) {
      if (alone) {
        store_in_cluster(&held[key], 0, score);
      } else {
        a.scores[key] = score;
      }
    });
    key0 = next;
  }
  cluster_arrive();  // the cluster's scores are written
  cluster_wait();
  if (alone) {
    if (rank == 0) select_in_cluster<1>(choice, held, static_cast<int>(count), 0, a.topk, a.indices, 0);
    return;
  }
  if (rank == 0 && warp == 0) {
    uint32_t before = 0;
    if (lane == 0) {
      __threadfence();
      before = atomicInc(a.ticket, static_cast<uint32_t>(scorers - 1));
      __threadfence();
    }
    before = shuffle_from(before, 0);
    if (lane < kBlocks) store_in_cluster(&last, static_cast<uint32_t>(lane), before == static_cast<uint32_t>(scorers - 1) ? 1u : 0u);
  }
  cluster_arrive();
  cluster_wait();
  if (last == 0) return;
  const uint4* const from = reinterpret_cast<const uint4*>(a.scores + own_first);
  for (int i = tid; 4 * i < n; i += kThreads) reinterpret_cast<uint4*>(held)[i] = __ldcg(from + i);
  select_in_cluster<kBlocks>(choice, held, n, static_cast<int>(own_first), a.topk, a.indices, rank);
}

int shared_bytes(const IndexerTopkArgs& a) {
  const int64_t alone = std::min((a.max_rows + 3) / 4 * 4, kClusterRows);
  return static_cast<int>(sizeof(ClusterChoice) + a.heads / 16 * kQueryTileBytes + 4 * a.heads + 4 * std::max(alone, select_rows_per_block(a.max_rows)));
}

bool fits(const GpuContext& gpu, const ChooseRotateArgs& a) {
  const auto aligned = [](const auto& m) { return reinterpret_cast<uintptr_t>(m.data) % 16 == 0; };
  const IndexerTopkArgs& c = a.choose;
  return c.q.rows == 1 && a.query.round_e2m1 && packed_index_keys(c.keys) && c.heads % 32 == 0 && c.heads <= kMostHeads && aligned(c.q) &&
         a.query.cos_sin.cols % 4 == 0 && a.query.cos_sin.cols <= kIndexDim && c.max_rows > c.indices.cols &&
         a.rotate.q.cols == a.rotate.heads * kHeadRounds * 128 && a.rotate.cos_sin.cols % 4 == 0 && aligned(a.rotate.q) && aligned(a.rotate.cos_sin) &&
         shared_bytes(c) <= gpu.properties.shared_bytes_per_block;
}

}  // namespace

Status choose_rotate_strips(OpContext& context, const ChooseRotateArgs& a) {
  GpuContext& gpu = gpu_context(context);
  if (!fits(gpu, a)) {
    DSV4_RETURN_IF_ERROR(query_norm_rope_portable(context, a.rotate));
    DSV4_RETURN_IF_ERROR(indexer_query_portable(context, a.query));
    return indexer_topk_strips(context, a.choose);
  }
  const IndexerTopkArgs& c = a.choose;
  const int64_t scorers = std::min(ceil_div(c.max_rows, kClusterRows), kMostScorers);
  uint32_t* scores = nullptr;
  if (scorers > 1) {
    DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(4 * ceil_div(c.max_rows, 4) * 4));
    scores = reinterpret_cast<uint32_t*>(scratch);
  }
  DSV4_RETURN_IF_ERROR(allow_large_clusters(reinterpret_cast<const void*>(choose_and_rotate)));
  const ChooseArgs args = {rows_of(a.rotate.cos_sin),
                           a.rotate.q.data,
                           static_cast<int>(a.rotate.heads),
                           static_cast<int>(a.rotate.cos_sin.cols),
                           a.rotate.eps,
                           c.q.data,
                           c.w.data,
                           a.query.cos_sin.data,
                           c.weight_scale,
                           static_cast<int>(c.heads),
                           static_cast<int>(a.query.cos_sin.cols),
                           c.rows.positions,
                           c.rows.slots,
                           c.ratio,
                           c.keys,
                           c.table,
                           c.max_rows,
                           static_cast<int>(c.indices.cols),
                           c.indices.data,
                           scores,
                           gpu.ticket};
  return launch(gpu, "choose_rotate", choose_and_rotate,
                {.blocks_x = (1 + scorers) * kBlocks, .threads = kThreads, .shared_bytes = shared_bytes(c), .cluster = kBlocks}, args);
}

}  // namespace dsv4::gpu
