// indexer_topk over packed keys (mxfp4 rows of 128 values): scores on tensor cores, selection as in portable/indexer_topk.cu.
//
// Queries are operand A, three bfloat16 terms prepared once per block in shared memory (all but the first are skipped where the query is already
// E2M1, which one term holds exactly). A warp takes 16 keys at a time: lane (g, t) reads the 16 bytes of group t of key 8 tile + g, which are 32
// values under one scale, exact in bfloat16. Scores sum over heads in a fixed order: heads of a lane, then the eight lanes of a column.
// Blocks take tiles of 128 keys in turn, so short contexts spread too. Bound by reading the keys in long contexts, by latency in short ones.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/indexer_topk.h"
#include "backends/gpu/portable/paged.h"
#include "backends/gpu/sm90/activation.h"

namespace dsv4::gpu {
namespace {

constexpr int kDim = 128;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kWarpKeys = 16;
constexpr int kTiles = kWarpKeys / 8;
constexpr int kTileKeys = kWarps * kWarpKeys;
constexpr int kSteps = kDim / 16;
constexpr int kOperandBytes = 512;  // operand A of one step: 32 lanes x 16 bytes

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
  uint32_t* scores;
};

__device__ uint32_t bf16_pair(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

// Codes i and i + 4 of a word of eight E2M1 codes, times 2^-126, as bfloat16: subnormal where the code is.
template <int i>
__device__ uint32_t e2m1_pair(uint32_t word) {
  const uint32_t top = word << (12 - 4 * i);
  return (top & 0x80008000u) | ((top >> 6) & 0x01c001c0u);
}
__device__ uint32_t times_bf16(uint32_t pair, uint32_t factor) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(factor));
  return out;
}
// A power of two 2^exponent twice over, as bfloat16; exponent within -126 .. 127.
__device__ uint32_t power_bf16(int exponent) { return static_cast<uint32_t>(exponent + 127) * 0x00800080u; }

__global__ void __launch_bounds__(kThreads) index_scores_mma(const __grid_constant__ ScoreArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];  // queries [3 terms][heads / 16][kSteps][512 bytes], then weights [heads]
  __shared__ int more_terms;
  wait_previous();
  allow_next();
  const int64_t t = a.first_token + blockIdx.y;
  const int64_t count = index_rows(a.rows.positions[t], a.ratio, a.max_rows);
  if (static_cast<int64_t>(blockIdx.x) * kTileKeys >= count) return;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
  const int head_tiles = a.heads / 16, term_bytes = head_tiles * kSteps * kOperandBytes;
  float* weights = reinterpret_cast<float*>(shared + 3 * term_bytes);
  if (tid == 0) more_terms = 0;
  __syncthreads();
  // Of lane c's 32 values, those of word w = s / 2 of the key: step s covers its values 2(s % 2) + {0, 4, 1, 5}, in that order, as the keys do. A thread
  // makes both steps of a word.
  const auto put_terms = [&](int first, int last) {
    bool rest = false;
#pragma unroll 4
    for (int i = tid; i < head_tiles * kSteps * 32; i += kThreads) {
      const int l = i / 2 % 32, r = i % 2, word = i / 64 % (kSteps / 2), tile = i / (kSteps * 32);
      const float* q = a.q.row(t) + static_cast<int64_t>(tile * 16 + l / 4 + 8 * r) * kDim + 32 * (l % 4) + word * 8;
      const float4 near = load_four(q), far = load_four(q + 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[4] = {half == 0 ? near.x : near.z, half == 0 ? far.x : far.z, half == 0 ? near.y : near.w, half == 0 ? far.y : far.w};
#pragma unroll
        for (int term = 0; term < 3; ++term) {
          const uint32_t low = bf16_pair(v[0], v[1]), high = bf16_pair(v[2], v[3]);
          if (term >= first && term < last) {
            uint32_t* to = reinterpret_cast<uint32_t*>(shared + term * term_bytes + (tile * kSteps + 2 * word + half) * kOperandBytes + l * 16);
            to[r] = low;
            to[2 + r] = high;
          }
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
  const uint32_t queries = shared_address(shared) + lane * 16;

  for (int64_t tile0 = static_cast<int64_t>(blockIdx.x) * kTileKeys; tile0 < count; tile0 += static_cast<int64_t>(gridDim.x) * kTileKeys) {
    const int64_t key0 = tile0 + warp * kWarpKeys;
    if (key0 >= count) continue;
    uint4 data[kTiles];
    int scale[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int64_t key = key0 + 8 * i + g;
      data[i] = {0, 0, 0, 0};
      scale[i] = 127;
      if (key < count) {
        const RowPlace place = row_place(a.keys, a.table, a.rows.slots[t], key);
        data[i] = *reinterpret_cast<const uint4*>(place.data + 16 * c);
        scale[i] = place.scale[c];
      }
    }
    float total[kTiles][2] = {};
    uint2 b[kTiles][kSteps];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      // 2^126 and the scale, in two steps that stay within bfloat16: scales from 2^-126 to 2^64.
      const uint32_t half = power_bf16(63), rest = power_bf16(max(-126, min(scale[i] - 127 + 63, 127)));
      const uint32_t words[4] = {data[i].x, data[i].y, data[i].z, data[i].w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        b[i][2 * w] = {times_bf16(times_bf16(e2m1_pair<0>(words[w]), half), rest), times_bf16(times_bf16(e2m1_pair<1>(words[w]), half), rest)};
        b[i][2 * w + 1] = {times_bf16(times_bf16(e2m1_pair<2>(words[w]), half), rest), times_bf16(times_bf16(e2m1_pair<3>(words[w]), half), rest)};
      }
    }
    for (int tile = 0; tile < head_tiles; ++tile) {
      float acc[kTiles][4] = {};
      for (int term = 0; term < terms; ++term) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const uint4 w = load_shared16(queries + term * term_bytes + (tile * kSteps + s) * kOperandBytes);
          const OperandA q = {{w.x, w.y, w.z, w.w}};
#pragma unroll
          for (int i = 0; i < kTiles; ++i) mma_bf16(acc[i], q, b[i][s]);
        }
      }
      const float low = weights[tile * 16 + g], high = weights[tile * 16 + g + 8];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        total[i][0] = __fmaf_rn(high, fmaxf(acc[i][2], 0.0f), __fmaf_rn(low, fmaxf(acc[i][0], 0.0f), total[i][0]));
        total[i][1] = __fmaf_rn(high, fmaxf(acc[i][3], 0.0f), __fmaf_rn(low, fmaxf(acc[i][1], 0.0f), total[i][1]));
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float v = total[i][k];
        v = __fadd_rn(v, shuffle_xor(v, 4));
        v = __fadd_rn(v, shuffle_xor(v, 8));
        v = __fadd_rn(v, shuffle_xor(v, 16));
        const int64_t key = key0 + 8 * i + 2 * c + k;
        if (g == 0 && key < count) a.scores[blockIdx.y * a.max_rows + key] = ordered_score(v);
      }
    }
  }
}

}  // namespace

Status indexer_topk_strips(OpContext& context, const IndexerTopkArgs& a) {
  if (a.q.rows == 0) return ok_status();
  const bool packed = a.keys.format == RowFormat::kMxfp4 && a.keys.row_dim == kDim && a.heads % 16 == 0 && a.heads <= 64 && a.max_rows > a.indices.cols &&
                      reinterpret_cast<uintptr_t>(a.keys.base) % 16 == 0 && a.keys.block_stride_bytes % 16 == 0;
  if (!packed) return indexer_topk_portable(context, a);
  GpuContext& gpu = gpu_context(context);
  const int64_t batch = score_batch(a);
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(4 * batch * a.max_rows));
  auto* scores = reinterpret_cast<uint32_t*>(scratch);
  const int shared = static_cast<int>(3 * a.heads / 16 * kSteps * kOperandBytes + 4 * a.heads);
  for (int64_t first = 0; first < a.q.rows; first += batch) {
    const int64_t tokens = a.q.rows - first < batch ? a.q.rows - first : batch;
    const ScoreArgs args = {rows_of(a.q), rows_of(a.w), a.weight_scale, static_cast<int>(a.heads), a.rows, a.ratio, a.keys, a.table, first, a.max_rows, scores};
    const int64_t tiles = ceil_div(a.max_rows, kTileKeys), most = ceil_div(4 * gpu.properties.multiprocessors, tokens);
    DSV4_RETURN_IF_ERROR(launch(gpu, "indexer_topk (scores)", index_scores_mma,
                                {.blocks_x = tiles < most ? tiles : most, .blocks_y = tokens, .threads = kThreads, .shared_bytes = shared}, args));
    DSV4_RETURN_IF_ERROR(select_topk(gpu, a, scores, first, tokens));
  }
  return ok_status();
}

}  // namespace dsv4::gpu
