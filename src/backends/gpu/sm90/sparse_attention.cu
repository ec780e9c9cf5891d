// sparse_attention over the packed cache (fp8_ds_mla), 64 rotated of 512 values, on tensor cores.
//
// The keys a token sees, in the operator's order, are cut into splits of kSplitKeys. For one token, 16 heads and one split, eight warps each own 64 of
// the 512 dimensions, which is one scale group of the cache (the eighth: the rotated values): a warp loads its part of q (as three bfloat16 terms in
// registers) and of the keys (16 bytes a lane; E4M3 times its power of two, and BF16, are exact in bfloat16), multiplies, and the warps' partial
// scores are added in warp order in shared memory. Softmax of the split; then each warp forms its 64 output dimensions from the same keys,
// transposed through shared memory, with the probabilities as three bfloat16 terms. Splits are merged in order, from the sink, by one formula:
//   attend_loop  a block walks all splits of its token and keeps the output in registers: up to 255 rows (attend_token.cu: more).
//   attend_split a block makes one split, or some in turn if not all blocks fit at once; attend_merge merges: few rows, so that one token fills the device.
// Both give the same bits. Bound by latency with few rows, by tensor-core issue with many.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/attention.h"

namespace dsv4::gpu {
namespace {

constexpr int kDim = static_cast<int>(kMlaRowDim);
constexpr int kHeads = 16;  // of a block
constexpr int kSplitKeys = 32;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kWarpDims = kDim / kWarps;
constexpr int kKeyTiles = kSplitKeys / 8;
constexpr int kRowBytes = kWarpDims * 2 + 16;  // a key's 64 bfloat16 in shared memory, padded against bank conflicts
constexpr int kScoreStride = kSplitKeys + 1;
static_assert(kWarpDims == kMlaScaleGroup);

struct Shared {
  __align__(16) uint8_t keys[kWarps][kSplitKeys][kRowBytes];
  float scores[kWarps][kHeads][kScoreStride];
  float prob[kHeads][kScoreStride];
  float maximum[kHeads], sum[kHeads];
  int listed;
};

// q of this warp's dimensions: terms of operand A for four steps; row g and g + 8 of the block's heads. Lane t of step s holds dimensions
// 16t + 4s .. + 3 of the warp's 64: the same permutation as for the keys.
struct Query {
  OperandA term[3][4];
};
__device__ void load_query(const AttentionArgs& a, int64_t t, int head0, int warp, int lane, Query& q) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = head0 + g + 8 * r;
      float4 v = {0, 0, 0, 0};
      if (head < a.heads) {
        const float* from = a.q.row(t) + static_cast<int64_t>(head) * kDim + warp * kWarpDims + 16 * c + 4 * s;
        v = reinterpret_cast<uintptr_t>(from) % 16 == 0 ? *reinterpret_cast<const float4*>(from) : float4{from[0], from[1], from[2], from[3]};
      }
      uint32_t low[3], high[3];
      split_pair(v.x, v.y, low);
      split_pair(v.z, v.w, high);
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        q.term[i][s].r[r] = low[i];
        q.term[i][s].r[2 + r] = high[i];
      }
    }
  }
}

// Where the keys of a split lie; null: no such key.
struct KeyPlaces {
  const uint8_t* data[kSplitKeys];
  const uint8_t* scale[kSplitKeys];
};
// Threads 0 .. kSplitKeys - 1 of the block; a barrier must follow.
__device__ void put_place(const RowPlace& place, KeyPlaces& places) {
  if (threadIdx.x >= kSplitKeys) return;
  places.data[threadIdx.x] = place.data;
  places.scale[threadIdx.x] = place.scale;
}
__device__ void find_keys(const AttentionArgs& a, const Token& k, int split, KeyPlaces& places) {
  if (threadIdx.x < kSplitKeys) put_place(place_of_key(a, k, split * kSplitKeys + static_cast<int>(threadIdx.x)), places);
}

// This lane's bytes of a tile of keys: of key 8 tile + g, dimensions 16c .. 16c + 15 of the warp's 64.
struct KeyBytes {
  uint4 low, high;  // high: the rotated values, which are BF16
  float scale;
};

__device__ KeyBytes fetch_key(const KeyPlaces& places, int key, int warp, int c) {
  KeyBytes k{{0, 0, 0, 0}, {0, 0, 0, 0}, 0.0f};
  const uint8_t* data = places.data[key];
  if (data == nullptr) return k;
  if (warp < kWarps - 1) {
    k.low = *reinterpret_cast<const uint4*>(data + warp * kWarpDims + 16 * c);
    k.scale = decode_e8m0(places.scale[key][warp]);
  } else {
    const uint4* v = reinterpret_cast<const uint4*>(data + kMlaNopeDim + 32 * c);
    k.low = v[0];
    k.high = v[1];
  }
  return k;
}

// One split: o[tile] = sum of exp(score - maximum) * key over this warp's dimensions (accumulator layout: rows = heads g, g + 8; columns 8 tile + 2c,
// + 1), statistics in s.maximum and s.sum. `bytes_of(tile)` gives the lane's keys. Barriers inside; on entry `places` is set and visible.
template <class BytesOf>
__device__ void attend_keys(const AttentionArgs& a, const Query& q, int warp, int lane, Shared& s, const KeyPlaces& places, BytesOf bytes_of,
                            float (&o)[8][4]) {
  const int g = lane / 4, c = lane % 4;
  float score[kKeyTiles][4] = {};
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile) {
    const int key = 8 * tile + g;
    uint2 value[4];  // of step 0..3: four bfloat16
    const KeyBytes bytes = bytes_of(tile);
    if (warp < kWarps - 1) {
      value[0] = e4m3x4_to_bf16(bytes.low.x, bytes.scale);
      value[1] = e4m3x4_to_bf16(bytes.low.y, bytes.scale);
      value[2] = e4m3x4_to_bf16(bytes.low.z, bytes.scale);
      value[3] = e4m3x4_to_bf16(bytes.low.w, bytes.scale);
    } else {
      value[0] = {bytes.low.x, bytes.low.y};
      value[1] = {bytes.low.z, bytes.low.w};
      value[2] = {bytes.high.x, bytes.high.y};
      value[3] = {bytes.high.z, bytes.high.w};
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint2*>(&s.keys[warp][key][(16 * c + 4 * i) * 2]) = value[i];
#pragma unroll
      for (int term = 0; term < 3; ++term) mma_bf16(score[tile], q.term[term][i], value[i]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile) {
    s.scores[warp][g][8 * tile + 2 * c] = score[tile][0];
    s.scores[warp][g][8 * tile + 2 * c + 1] = score[tile][1];
    s.scores[warp][g + 8][8 * tile + 2 * c] = score[tile][2];
    s.scores[warp][g + 8][8 * tile + 2 * c + 1] = score[tile][3];
  }
  __syncthreads();

  // Softmax of the split: a warp takes two heads, a lane one key.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = 2 * warp + r;
    float v = s.scores[0][head][lane];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) v = __fadd_rn(v, s.scores[w][head][lane]);
    const bool seen = places.data[lane] != nullptr;
    v = __fmul_rn(v, a.scale);
    const float top = group_max(seen ? v : -3.0e38f);
    const float p = seen ? expf(v - top) : 0.0f;
    const float sum = group_sum(p);
    s.prob[head][lane] = p;
    if (lane == 0) {
      s.maximum[head] = top;
      s.sum[head] = sum;
    }
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < 8; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
#pragma unroll
  for (int step = 0; step < kSplitKeys / 16; ++step) {
    OperandA p[3];
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // r0: row g, keys 2c, 2c + 1; r1: row g + 8; r2, r3: keys + 8
      const float* from = &s.prob[g + part % 2 * 8][16 * step + part / 2 * 8 + 2 * c];
      uint32_t terms[3];
      split_pair(from[0], from[1], terms);
#pragma unroll
      for (int i = 0; i < 3; ++i) p[i].r[part] = terms[i];
    }
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {  // 16 dimensions
      // Four 8 x 8 matrices: keys 0-7 and 8-15 of the step, dimensions 0-7, then 8-15; transposed on load.
      const uint32_t at = shared_address(&s.keys[warp][16 * step + lane % 16][(16 * pair + lane / 16 * 8) * 2]);
      uint32_t r[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                   : "r"(at)
                   : "memory");
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        mma_bf16(o[2 * pair], p[i], {r[0], r[1]});
        mma_bf16(o[2 * pair + 1], p[i], {r[2], r[3]});
      }
    }
  }
}

// The running softmax of a head, from the sink. merge() gives the factors for the output so far and for the split's.
struct Merged {
  float maximum, sum;
};
__device__ float2 merge(Merged& m, float split_maximum, float split_sum) {
  const float top = fmaxf(m.maximum, split_maximum);
  const float keep = expf(m.maximum - top), add = expf(split_maximum - top);
  m.maximum = top;
  m.sum = __fadd_rn(__fmul_rn(m.sum, keep), __fmul_rn(split_sum, add));
  return {keep, add};
}
__device__ float merged_value(float so_far, float split, float2 factors) { return __fadd_rn(__fmul_rn(so_far, factors.x), __fmul_rn(split, factors.y)); }

__global__ void __launch_bounds__(kThreads, 2) attend_loop(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  __shared__ KeyPlaces places;
  wait_previous();
  allow_next();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, c = lane % 4;
  const int head0 = static_cast<int>(blockIdx.x) * kHeads;
  Token k = open_token(a, blockIdx.y, s.listed);
  __syncthreads();
  count_choices(a, k, s.listed);
  float out[8][4] = {};
  Merged m[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) m[r] = {head0 + g + 8 * r < a.heads ? a.sink[head0 + g + 8 * r] : 0.0f, 1.0f};
  if (k.position >= 0) {
    Query q;
    load_query(a, k.t, head0, warp, lane, q);
    for (int split = 0; split * kSplitKeys < k.keys; ++split) {
      __syncthreads();
      find_keys(a, k, split, places);
      __syncthreads();
      float o[8][4];
      attend_keys(
          a, q, warp, lane, s, places, [&](int tile) { return fetch_key(places, 8 * tile + g, warp, c); }, o);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 factors = merge(m[r], s.maximum[g + 8 * r], s.sum[g + 8 * r]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          out[i][2 * r] = merged_value(out[i][2 * r], o[i][2 * r], factors);
          out[i][2 * r + 1] = merged_value(out[i][2 * r + 1], o[i][2 * r + 1], factors);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (head0 + g + 8 * r >= a.heads) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      put_output(a, k.t, head0 + g + 8 * r, warp * kWarpDims + 8 * i + 2 * c, __fdiv_rn(out[i][2 * r], m[r].sum), __fdiv_rn(out[i][2 * r + 1], m[r].sum));
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) attend_split(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  __shared__ KeyPlaces places;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, c = lane % 4;
  const int head0 = static_cast<int>(blockIdx.y) * kHeads, step = static_cast<int>(gridDim.x);
  // Where keys lie that nobody chose, before the previous kernel ends.
  Token k = open_token(a, blockIdx.z, s.listed);
  const int key = static_cast<int>(blockIdx.x) * kSplitKeys + static_cast<int>(threadIdx.x);
  bool early = key < k.keys;
  RowPlace place{nullptr, nullptr};
  if (threadIdx.x < kSplitKeys && early) place = place_of_key(a, k, key);
  __syncthreads();
  wait_previous();
  allow_next();
  Query q;  // first: it waits for nothing but memory
  load_query(a, blockIdx.z, head0, warp, lane, q);
  if (a.ratio == 4) count_choices(a, k, s.listed);
  for (int split = static_cast<int>(blockIdx.x); split < a.splits; split += step) {
    if (split * kSplitKeys >= k.keys) {
      const int head = head0 + static_cast<int>(threadIdx.x);
      if (threadIdx.x < kHeads && head < a.heads) a.part_stats[(k.t * a.splits + split) * a.heads + head] = {0.0f, 0.0f};
      continue;
    }
    if (threadIdx.x < kSplitKeys && !early) place = place_of_key(a, k, split * kSplitKeys + static_cast<int>(threadIdx.x));
    put_place(place, places);
    __syncthreads();
    // All the lane's keys are fetched before the first is used, and the places of the next ones looked up meanwhile.
    KeyBytes bytes[kKeyTiles];
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) bytes[tile] = fetch_key(places, 8 * tile + g, warp, c);
    early = split + step < a.splits;
    if (early && threadIdx.x < kSplitKeys) {
      place = place_of_key(a, k, (split + step) * kSplitKeys + static_cast<int>(threadIdx.x));
      for (int i = 0; place.data != nullptr && i < kMlaDataBytes; i += 128) prefetch_l2(place.data + i);
    }
    float o[8][4];
    attend_keys(
        a, q, warp, lane, s, places, [&](int tile) { return bytes[tile]; }, o);
    const int64_t base = (k.t * a.splits + split) * a.heads;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = head0 + g + 8 * r;
      if (head >= a.heads) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) *reinterpret_cast<float2*>(a.part + (base + head) * kDim + warp * kWarpDims + 8 * i + 2 * c) = {o[i][2 * r], o[i][2 * r + 1]};
      if (warp == 0 && c == 0) a.part_stats[base + head] = {s.maximum[g + 8 * r], s.sum[g + 8 * r]};
    }
    if (split + step < a.splits) __syncthreads();  // the block's memory is read
  }
}

// Two blocks per head; a thread has two dimensions. Lane i of every warp makes the factors of split i, as merge() would one after another.
constexpr int kMergeThreads = kDim / 4;
__global__ void __launch_bounds__(kMergeThreads) attend_merge(const __grid_constant__ AttentionArgs a) {
  constexpr int kBatch = 32;  // splits whose loads are under way together: all of 128 + 512 keys and more
  static_assert(kBatch == kGroupLanes);
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.y;
  const int head = static_cast<int>(blockIdx.x) / 2, d = 2 * static_cast<int>(blockIdx.x % 2 * kMergeThreads + threadIdx.x), lane = group_lane();
  float maximum = a.sink[head], sum = 1.0f, x = 0, y = 0;
  for (int s0 = 0; s0 < a.splits; s0 += kBatch) {
    const int64_t first = (t * a.splits + s0) * a.heads + head;
    const float2 own = s0 + lane < a.splits ? a.part_stats[first + lane * a.heads] : float2{0.0f, 0.0f};
    float2 part[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      // What lies here for a split without keys is old; it is not used. Volatile: else it is loaded only when `own` has said so.
      part[i] = {0.0f, 0.0f};
      if (s0 + i < a.splits) {
        asm volatile("ld.volatile.global.v2.f32 {%0, %1}, [%2];"
                     : "=f"(part[i].x), "=f"(part[i].y)
                     : "l"(a.part + (first + i * a.heads) * kDim + d)
                     : "memory");
      }
    }
    float top = own.y != 0.0f ? fmaxf(maximum, own.x) : maximum;
#pragma unroll
    for (int step = 1; step < kGroupLanes; step *= 2) top = fmaxf(top, shuffle_from(top, lane < step ? lane : lane - step));
    const float before = shuffle_from(top, lane == 0 ? 0 : lane - 1);
    const float keep = expf((lane == 0 ? maximum : before) - top), add = expf(own.x - top);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float keys = shuffle_from(own.y, i);
      if (keys == 0.0f) continue;
      const float2 factors = {shuffle_from(keep, i), shuffle_from(add, i)};
      sum = merged_value(sum, keys, factors);
      x = merged_value(x, part[i].x, factors);
      y = merged_value(y, part[i].y, factors);
    }
    maximum = shuffle_from(top, kGroupLanes - 1);
  }
  put_output(a, t, head, d, __fdiv_rn(x, sum), __fdiv_rn(y, sum));
}

bool packed(const PagedRows& rows) {
  return rows.format == RowFormat::kFp8DsMla && reinterpret_cast<uintptr_t>(rows.base) % 16 == 0 && rows.block_stride_bytes % 16 == 0;
}

}  // namespace

Status sparse_attention_strips(OpContext& context, const SparseAttentionArgs& a) {
  if (a.q.rows == 0) return ok_status();
  if (!packed(a.window) || (a.ratio != 0 && !packed(a.compressed)) || a.cos_sin.cols != kMlaRopeDim) return sparse_attention_portable(context, a);
  GpuContext& gpu = gpu_context(context);
  const int64_t most_keys = a.window_tokens + (a.ratio == 128 ? a.max_compressed_rows : a.ratio == 4 ? a.topk.cols : 0);
  AttentionArgs args = {rows_of(a.q),
                        static_cast<int>(a.heads),
                        a.rows,
                        a.window,
                        a.window_table,
                        a.ring_rows,
                        a.window_tokens,
                        a.ratio,
                        a.compressed,
                        a.compressed_table,
                        a.max_compressed_rows,
                        rows_of(a.topk),
                        a.ratio == 4 ? static_cast<int>(a.topk.cols) : 0,
                        a.sink,
                        a.scale,
                        rows_of(a.cos_sin),
                        rows_of(a.o),
                        static_cast<int>(ceil_div(most_keys, kSplitKeys)),
                        nullptr,
                        nullptr};
  // From here on a row's bits may depend on how many rows there are.
  if (a.q.rows >= 256 && a.heads % kTokenHeads == 0) return launch_attend_token(gpu, args, a.q.rows);
  const int64_t head_tiles = ceil_div(a.heads, kHeads);
  if (a.q.rows * head_tiles > gpu.properties.multiprocessors) {
    return launch(gpu, "sparse_attention (loop)", attend_loop,
                  {.blocks_x = head_tiles, .blocks_y = a.q.rows, .threads = kThreads, .shared_bytes = sizeof(Shared)}, args);
  }
  const auto cut = [&](ScratchPlan plan) {
    args.part = plan.take<float>(a.q.rows * args.splits * a.heads * kDim);
    args.part_stats = plan.take<float2>(a.q.rows * args.splits * a.heads);
    return plan.used_bytes();
  };
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(cut(ScratchPlan())));
  cut(ScratchPlan(scratch));
  // All blocks under way at once, as many splits for each.
  const int64_t rounds = ceil_div(a.q.rows * head_tiles * args.splits, 2 * gpu.properties.multiprocessors);
  DSV4_RETURN_IF_ERROR(launch(
      gpu, "sparse_attention (split)", attend_split,
      {.blocks_x = ceil_div(args.splits, rounds), .blocks_y = head_tiles, .blocks_z = a.q.rows, .threads = kThreads, .shared_bytes = sizeof(Shared)}, args));
  return launch(gpu, "sparse_attention (merge)", attend_merge, {.blocks_x = 2 * a.heads, .blocks_y = a.q.rows, .threads = kMergeThreads}, args);
}

}  // namespace dsv4::gpu
