// sparse_attention for many rows (prefill) on warpgroup products: a block takes one token and 64 of its heads, so its keys are decoded once.
//
// Keys are worked on in splits of 64, decoded into shared memory as bfloat16 (exact: E4M3 times a power of two, and BF16), in core matrices of eight keys and
// eight dimensions, which serve the scores as operand B with k = dimensions and the output as operand B with k = keys. Of two warpgroups each owns 256
// dimensions: it multiplies them into partial scores of all heads, adds the other's through shared memory, and so both hold the same probabilities; then it
// sums the probabilities times its dimensions of the keys, in registers. q and the probabilities are three bfloat16 terms: q in float32 lies in shared
// memory in the order in which its own thread takes it and is cut on the way. Softmax runs from the sink. The next split's keys are on their way to
// registers meanwhile.
// At 2,048 rows of one sequence 0.81 ms with 512 chosen keys (ratio 4), 40 % of the tensor cores' time; the rest is latency between a split's phases, as
// one block fills a multiprocessor's shared memory.
// Within a step of 16 dimensions, operands hold 4t, 4t + 1 of t = 0..3, then 4t + 2, 4t + 3 (weight_layout.h).
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/attention.h"
#include "backends/gpu/sm90/warpgroup.h"

namespace dsv4::gpu {
namespace {

constexpr int kDim = static_cast<int>(kMlaRowDim);
constexpr int kSplitKeys = 64;
constexpr int kThreads = 256;
constexpr int kOwnDims = kDim / 2;
constexpr int kOwnSteps = kOwnDims / 16;
constexpr int kKeyTiles = kSplitKeys / 8, kKeySteps = kSplitKeys / 16, kDimTiles = kOwnDims / 8;
constexpr int kCoreBytes = 128;                        // a core matrix
constexpr int kKeyGroupBytes = kDim / 8 * kCoreBytes;  // eight keys
static_assert(kMlaScaleGroup == 64 && kThreads / 32 * 8 == kSplitKeys);

struct Place {
  const uint8_t* data;
  const uint8_t* scale;
};
struct Shared {
  float4 q[kOwnSteps][2][kThreads];
  uint8_t keys[kSplitKeys / 8 * kKeyGroupBytes];
  float4 partial[kKeyTiles][kThreads];
  Place places[2][kSplitKeys];
  int listed;
};
static_assert(sizeof(Shared) <= 227 * 1024);

// A lane's part of eight keys, key lane % 8 of the warp's: of every 64 dimensions the 16 from 16 (lane / 8).
struct RawKey {
  uint4 rounded[7], rotated[2];
  uint2 scales;
};
__device__ RawKey fetch(const Place& place, int part) {
  RawKey k{};
  if (place.data == nullptr) return k;
#pragma unroll
  for (int i = 0; i < 7; ++i) k.rounded[i] = *reinterpret_cast<const uint4*>(place.data + 64 * i + 16 * part);
#pragma unroll
  for (int i = 0; i < 2; ++i) k.rotated[i] = *reinterpret_cast<const uint4*>(place.data + kMlaNopeDim + 32 * part + 16 * i);
  k.scales = *reinterpret_cast<const uint2*>(place.scale);
  return k;
}
__device__ void decode(const RawKey& k, uint8_t* keys, int warp, int lane) {
  uint8_t* to = keys + warp * kKeyGroupBytes + lane / 8 * 2 * kCoreBytes + lane % 8 * 16;
#pragma unroll
  for (int i = 0; i < 8; ++i, to += 8 * kCoreBytes) {
    uint4 first, second;
    if (i < 7) {
      const float scale = decode_e8m0(static_cast<uint8_t>((i < 4 ? k.scales.x >> (8 * i) : k.scales.y >> (8 * (i - 4))) & 255u));
      const uint4 v = k.rounded[i];
      const uint2 a = e4m3x4_to_bf16(v.x, scale), b = e4m3x4_to_bf16(v.y, scale), c = e4m3x4_to_bf16(v.z, scale), d = e4m3x4_to_bf16(v.w, scale);
      first = {a.x, b.x, c.x, d.x};
      second = {a.y, b.y, c.y, d.y};
    } else {
      const uint4 v = k.rotated[0], w = k.rotated[1];
      first = {v.x, v.z, w.x, w.z};
      second = {v.y, v.w, w.y, w.w};
    }
    *reinterpret_cast<uint4*>(to) = first;
    *reinterpret_cast<uint4*>(to + kCoreBytes) = second;
  }
}

// Descriptors of keys as operand B: the two core matrices of a step lie `along` bytes apart, tiles of eight columns `across`.
__device__ uint64_t keys_operand(uint32_t at, int along, int across) {
  return static_cast<uint64_t>((at & 0x3ffffu) >> 4) | static_cast<uint64_t>(along >> 4) << 16 | static_cast<uint64_t>(across >> 4) << 32;
}
// c += a * b, 256 columns, where a core matrix of b holds eight columns side by side for each of eight k.
__device__ void product_of_columns(float (&c)[32][4], const OperandA& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]),
        "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
        "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
        "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
        "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]),
        "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]),
        "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3]), "+f"(c[16][0]), "+f"(c[16][1]), "+f"(c[16][2]),
        "+f"(c[16][3]), "+f"(c[17][0]), "+f"(c[17][1]), "+f"(c[17][2]), "+f"(c[17][3]), "+f"(c[18][0]), "+f"(c[18][1]), "+f"(c[18][2]), "+f"(c[18][3]),
        "+f"(c[19][0]), "+f"(c[19][1]), "+f"(c[19][2]), "+f"(c[19][3]), "+f"(c[20][0]), "+f"(c[20][1]), "+f"(c[20][2]), "+f"(c[20][3]), "+f"(c[21][0]),
        "+f"(c[21][1]), "+f"(c[21][2]), "+f"(c[21][3]), "+f"(c[22][0]), "+f"(c[22][1]), "+f"(c[22][2]), "+f"(c[22][3]), "+f"(c[23][0]), "+f"(c[23][1]),
        "+f"(c[23][2]), "+f"(c[23][3]), "+f"(c[24][0]), "+f"(c[24][1]), "+f"(c[24][2]), "+f"(c[24][3]), "+f"(c[25][0]), "+f"(c[25][1]), "+f"(c[25][2]),
        "+f"(c[25][3]), "+f"(c[26][0]), "+f"(c[26][1]), "+f"(c[26][2]), "+f"(c[26][3]), "+f"(c[27][0]), "+f"(c[27][1]), "+f"(c[27][2]), "+f"(c[27][3]),
        "+f"(c[28][0]), "+f"(c[28][1]), "+f"(c[28][2]), "+f"(c[28][3]), "+f"(c[29][0]), "+f"(c[29][1]), "+f"(c[29][2]), "+f"(c[29][3]), "+f"(c[30][0]),
        "+f"(c[30][1]), "+f"(c[30][2]), "+f"(c[30][3]), "+f"(c[31][0]), "+f"(c[31][1]), "+f"(c[31][2]), "+f"(c[31][3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
}
// Four values of rows g and g + 8 as operand A: three terms.
__device__ void split_operand(const float4& low, const float4& high, OperandA (&term)[3]) {
  uint32_t parts[4][3];
  split_pair(low.x, low.y, parts[0]);
  split_pair(high.x, high.y, parts[1]);
  split_pair(low.z, low.w, parts[2]);
  split_pair(high.z, high.w, parts[3]);
#pragma unroll
  for (int i = 0; i < 3; ++i) term[i] = {{parts[0][i], parts[1][i], parts[2][i], parts[3][i]}};
}

__global__ void __launch_bounds__(kThreads, 1) attend_token(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) uint8_t raw_shared[];
  Shared& s = *reinterpret_cast<Shared*>(raw_shared);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, group = warp / 4, g = lane / 4, t = lane % 4;
  const int head = static_cast<int>(blockIdx.y) * kTokenHeads + warp % 4 * 16 + g;  // and head + 8
  wait_previous();
  allow_next();
  Token k = open_token(a, blockIdx.x, s.listed);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float* const from = a.q.row(k.t) + static_cast<int64_t>(head + 8 * r) * kDim + group * kOwnDims + 4 * t;
    if (aligned16(from)) {
#pragma unroll
      for (int i = 0; i < kOwnSteps; ++i) copy16_async(shared_address(&s.q[i][r][tid]), from + 16 * i);
    } else {
      for (int i = 0; i < 4 * kOwnSteps; ++i) reinterpret_cast<float*>(&s.q[i / 4][r][tid])[i % 4] = from[i / 4 * 16 + i % 4];
    }
  }
  commit_copies();
  __syncthreads();
  count_choices(a, k, s.listed);
  const int keys = k.position >= 0 ? k.keys : 0;
  const auto place_of = [&](int key) -> Place {
    if (key >= keys) return {nullptr, nullptr};
    const RowPlace place = place_of_key(a, k, key);
    return {place.data, place.scale};
  };
  if (tid < 2 * kSplitKeys) s.places[tid / kSplitKeys][tid % kSplitKeys] = place_of(tid);
  __syncthreads();

  float out[kDimTiles][4] = {};
  float maximum[2] = {a.sink[head], a.sink[head + 8]}, sum[2] = {t == 0 ? 1.0f : 0.0f, t == 0 ? 1.0f : 0.0f};  // sum: this lane's share
  const uint32_t keys_at = shared_address(s.keys);
  RawKey raw = fetch(s.places[0][8 * warp + lane % 8], lane / 8);
  wait_copies<0>();  // of q: a thread's own
  for (int split = 0; split * kSplitKeys < keys; ++split) {
    decode(raw, s.keys, warp, lane);
    publish_copies();
    __syncthreads();
    Place later{nullptr, nullptr};
    if (tid < kSplitKeys) later = place_of((split + 2) * kSplitKeys + tid);

    float score[kKeyTiles][4] = {};
    OperandA q[2][3];
    float4 q_low = s.q[0][0][tid], q_high = s.q[0][1][tid];
#pragma unroll
    for (int i = 0; i < kOwnSteps; ++i) {
      split_operand(q_low, q_high, q[i % 2]);
      if (i + 1 < kOwnSteps) {
        q_low = s.q[i + 1][0][tid];
        q_high = s.q[i + 1][1][tid];
      }
      const uint64_t b = keys_operand(keys_at + group * kOwnSteps * 2 * kCoreBytes + i * 2 * kCoreBytes, kCoreBytes, kKeyGroupBytes);
      warpgroup_begin();
#pragma unroll
      for (int term = 0; term < 3; ++term) Warpgroup<true, kKeyTiles>::product(score, q[i % 2][term], b, 1);
      commit_batch();
      wait_batches<1>();
    }
    wait_batches<0>();
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) s.partial[i][tid] = {score[i][0], score[i][1], score[i][2], score[i][3]};
    if (tid < kSplitKeys) s.places[split % 2][tid] = later;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) {
      const float4 other = s.partial[i][tid ^ 128];
      const float theirs[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) score[i][c] = __fmul_rn(__fadd_rn(score[i][c], theirs[c]), a.scale);
    }
    const int here = keys - split * kSplitKeys;
    if (here < kSplitKeys) {
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) score[i][c] = 8 * i + 2 * t + c % 2 < here ? score[i][c] : -3.0e38f;
      }
    }
    float top[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) top[c / 2] = fmaxf(top[c / 2], score[i][c]);
    }
    float keep[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], shuffle_xor(top[r], 1));
      top[r] = fmaxf(top[r], shuffle_xor(top[r], 2));
      keep[r] = __expf(maximum[r] - top[r]);
      maximum[r] = top[r];
      sum[r] *= keep[r];
    }
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        score[i][c] = __expf(score[i][c] - top[c / 2]);
        sum[c / 2] += score[i][c];
      }
    }
    if (group_ballot(keep[0] != 1.0f || keep[1] != 1.0f) != 0) {
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) out[i][c] *= keep[c / 2];
      }
    }
    OperandA p[2][3];
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) {
      const float(&x)[4] = score[2 * i], (&y)[4] = score[2 * i + 1];
      split_operand({x[0], x[1], y[0], y[1]}, {x[2], x[3], y[2], y[3]}, p[i % 2]);
      const uint64_t b = keys_operand(keys_at + group * kDimTiles * kCoreBytes + i * 2 * kKeyGroupBytes, kKeyGroupBytes, kCoreBytes);
      warpgroup_begin();
#pragma unroll
      for (int term = 0; term < 3; ++term) product_of_columns(out, p[i % 2][term], b);
      commit_batch();
      if (i == 0) raw = fetch(s.places[(split + 1) % 2][8 * warp + lane % 8], lane / 8);
      wait_batches<1>();
    }
    wait_batches<0>();
    __syncthreads();
  }

  // Rotated dimensions are the last eight tiles of the second warpgroup.
  constexpr int kRotatedFrom = kDimTiles - static_cast<int>(kMlaRopeDim) / 8;
  float angles[kDimTiles - kRotatedFrom][2];
#pragma unroll
  for (int i = kRotatedFrom; i < kDimTiles; i += 2) {
#pragma unroll
    for (int c = 0; c < 4; ++c) angles[i - kRotatedFrom + c / 2][c % 2] = group == 1 ? a.cos_sin.row(k.t)[8 * (i - kRotatedFrom) + 4 * t + c] : 0.0f;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += shuffle_xor(sum[r], 1);
    sum[r] += shuffle_xor(sum[r], 2);
    const float inverse = __frcp_rn(sum[r]);
    float* const to = a.o.row(k.t) + static_cast<int64_t>(head + 8 * r) * kDim + group * kOwnDims + 4 * t;
#pragma unroll
    for (int i = 0; i < kDimTiles; i += 2) {
      float4 v = {out[i][2 * r] * inverse, out[i][2 * r + 1] * inverse, out[i + 1][2 * r] * inverse, out[i + 1][2 * r + 1] * inverse};
      if (i >= kRotatedFrom && group == 1) {
        rotate_back(angles[i - kRotatedFrom], v.x, v.y);
        rotate_back(angles[i - kRotatedFrom + 1], v.z, v.w);
      }
      if (aligned16(to)) {
        *reinterpret_cast<float4*>(to + 8 * i) = v;
      } else {
        to[8 * i] = v.x, to[8 * i + 1] = v.y, to[8 * i + 2] = v.z, to[8 * i + 3] = v.w;
      }
    }
  }
}

}  // namespace

Status launch_attend_token(GpuContext& gpu, const AttentionArgs& args, int64_t tokens) {
  return launch(gpu, "sparse_attention (token)", attend_token,
                {.blocks_x = tokens, .blocks_y = args.heads / kTokenHeads, .threads = kThreads, .shared_bytes = sizeof(Shared)}, args);
}

}  // namespace dsv4::gpu
