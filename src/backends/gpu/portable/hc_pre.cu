// hc_pre in two launches. The first splits f = h[t] into slices of kSlice values: a lane group keeps its columns of four rows of fn in registers
// (loaded before the previous kernel ends: fn is a weight) and makes the slice's part of those four mixes for token after token; f.f counts as one
// more mix. The second, per token, adds the parts in slice order: one half makes pre, x and its norm, the other post and comb, whose Sinkhorn
// iterations run in one thread's registers. Neither the number of tokens nor the kernel chosen for it moves a bit: every sum has one order.
// Bound at one token by latency, at many by reading h twice (from L2 up to about 500 tokens) beside 24 multiply-adds a value.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/hc_pre.h"

namespace dsv4::gpu {
namespace {

constexpr int kSlice = kHcSlice;
constexpr int kPerLane = kHcPerLane;
constexpr int kMixesPerGroup = kHcMixesPerGroup;
constexpr int kMixThreads = 7 * kGroupLanes;  // 28 mixes at a time: the 24 of four streams and f.f in one go
constexpr int kTokensPerPass = 8;             // 8 tokens x 4 mixes: as many sums as a group has lanes
constexpr int kApplyThreads = kHcApplyThreads;
constexpr int kMaxStreams = 8;
constexpr int kMaxMixes = (2 + kMaxStreams) * kMaxStreams;

// parts[t][slice][mixes + 1]; the last is the slice's part of f.f.
template <int kTokens>
__global__ void __launch_bounds__(kMixThreads, 2)
    hc_mix_parts(Rows<const float> h, Rows<const float> fn, int mixes, int64_t values, int64_t tokens, int tokens_per_block, float* parts) {
  constexpr int kValues = kTokens * kMixesPerGroup;
  const int lane = group_lane();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSlice + lane;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * tokens_per_block, end = first + tokens_per_block < tokens ? first + tokens_per_block : tokens;
  bool waited = false;
  for (int r0 = group_index() * kMixesPerGroup; r0 <= mixes; r0 += kMixThreads / kGroupLanes * kMixesPerGroup) {
    float w[kMixesPerGroup][kPerLane];
#pragma unroll
    for (int j = 0; j < kMixesPerGroup; ++j) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) w[j][i] = r0 + j < mixes && column + i * kGroupLanes < values ? fn.row(r0 + j)[column + i * kGroupLanes] : 0.0f;
    }
    if (!waited) {
      wait_previous();
      allow_next();
      waited = true;
    }
    const bool squares = r0 + kMixesPerGroup > mixes;  // this group makes f.f too
    for (int64_t t0 = first; t0 < end; t0 += kTokens) {
      float sums[kValues] = {};
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const bool inside = column + i * kGroupLanes < values;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float f = inside && t0 + t < end ? h.row(t0 + t)[column + i * kGroupLanes] : 0.0f;
#pragma unroll
          for (int j = 0; j < kMixesPerGroup; ++j) {
            const float factor = squares && r0 + j == mixes ? f : w[j][i];
            sums[t * kMixesPerGroup + j] = __fmaf_rn(f, factor, sums[t * kMixesPerGroup + j]);
          }
        }
      }
      const float sum = group_sums(sums);
      constexpr int kLanesPerValue = kGroupLanes / kValues;
      const int value = lane / kLanesPerValue, r = r0 + value % kMixesPerGroup;
      const int64_t t = t0 + value / kMixesPerGroup;
      if (lane % kLanesPerValue == 0 && r <= mixes && t < end) parts[(t * gridDim.x + blockIdx.x) * (mixes + 1) + r] = sum;
    }
  }
}

// Sums over the slices, in shared memory: mixes [first, last) and, at mix[mixes], f.f. A barrier follows.
__device__ void add_parts(const HcApplyArgs& a, int64_t t, int mixes, int first, int last, float* mix) {
  for (int i = first + group_index(); i <= last; i += static_cast<int>(blockDim.x) / kGroupLanes) {
    const int r = i == last ? mixes : i;
    float sum = 0;
    for (int64_t s = group_lane(); s < a.slices; s += kGroupLanes) sum += a.parts[(t * a.slices + s) * (mixes + 1) + r];
    sum = group_sum(sum);
    if (group_lane() == 0) mix[r] = sum;
  }
  __syncthreads();
}

__device__ void make_post_and_comb(const HcApplyArgs& a, int64_t t, float* mix) {
  const int m = a.streams, mixes = (2 + m) * m;
  add_parts(a, t, mixes, m, mixes, mix);
  if (group_index() == 0) post_and_comb(a, t, mix);
}

__global__ void __launch_bounds__(kApplyThreads) hc_apply(HcApplyArgs a) {
  __shared__ float mix[kMaxMixes + 1];
  __shared__ float scratch[kGroupLanes];
  wait_previous();
  allow_next();
  const int64_t t = blockIdx.x;
  if (blockIdx.y != 0) {
    make_post_and_comb(a, t, mix);
    return;
  }
  const int m = a.streams;
  add_parts(a, t, (2 + m) * m, 0, m, mix);
  const float root = sqrtf(mix[(2 + m) * m] / static_cast<float>(m * a.dim) + a.rms_eps);
  float pre[kMaxStreams];
  for (int i = 0; i < m; ++i) pre[i] = sigmoid(mix[i] / root * a.scale[0] + a.base[i]) + a.hc_eps;
  const float* f = a.h.row(t);
  float* x = a.x.row(t);
  float sum = 0;
  for (int64_t d = threadIdx.x; d < a.dim; d += kApplyThreads) {
    float v = 0;
    for (int i = 0; i < m; ++i) v += pre[i] * f[i * a.dim + d];
    x[d] = v;
    sum += v * v;
  }
  const float x_root = sqrtf(block_sum(sum, scratch) / static_cast<float>(a.dim) + a.rms_eps);
  for (int64_t d = threadIdx.x; d < a.dim; d += kApplyThreads) x[d] = decode_bf16(a.norm[d]) * (x[d] / x_root);
}

// Four streams, dim a multiple of 4 and at most 4 * kApplyThreads, 16-byte aligned rows: a thread keeps its four columns in registers, and their
// loads run beside the sums'.
__global__ void __launch_bounds__(kApplyThreads) hc_apply_held(HcApplyArgs a) {
  constexpr int kStreams = 4, kMixes = (2 + kStreams) * kStreams;
  __shared__ float mix[kMixes + 1];
  __shared__ float scratch[kGroupLanes];
  const int64_t t = blockIdx.x;
  const int d = 4 * static_cast<int>(threadIdx.x);
  const bool holds = blockIdx.y == 0 && d < a.dim;
  ushort4 norm = {0, 0, 0, 0};
  if (holds) norm = *reinterpret_cast<const ushort4*>(a.norm + d);
  wait_previous();
  allow_next();
  if (blockIdx.y != 0) {
    make_post_and_comb(a, t, mix);
    return;
  }
  float4 f[kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) f[i] = holds ? *reinterpret_cast<const float4*>(a.h.row(t) + i * a.dim + d) : float4{0, 0, 0, 0};
  add_parts(a, t, kMixes, 0, kStreams, mix);
  const float root = sqrtf(mix[kMixes] / static_cast<float>(kStreams * a.dim) + a.rms_eps);
  float4 x = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    const float pre = sigmoid(mix[i] / root * a.scale[0] + a.base[i]) + a.hc_eps;
    x = weighted(x, pre, f[i]);
  }
  const float inverse = 1.0f / sqrtf(block_sum(square_sum(x), scratch) / static_cast<float>(a.dim) + a.rms_eps);
  if (holds) store_normed(a, t, d, norm, x, inverse);
}

// The same for many tokens, with 256 threads a token and the same sums: a thread does the work of four of the kernel above. Blocks beyond the
// tokens make post and comb, a group each token.
constexpr int kManyThreads = 256;
constexpr int kManyGroups = kManyThreads / kGroupLanes;

__global__ void __launch_bounds__(kManyThreads) hc_apply_many(HcApplyArgs a, int64_t tokens) {
  constexpr int kStreams = 4, kMixes = (2 + kStreams) * kStreams, kParts = kApplyThreads / kManyThreads;
  __shared__ float mix[kManyGroups][kMixes + 1];
  __shared__ float squares[kGroupLanes];
  wait_previous();
  allow_next();
  if (blockIdx.x >= tokens) {
    const int64_t t = (blockIdx.x - tokens) * kManyGroups + group_index();
    if (t >= tokens) return;
    float* own = mix[group_index()];
    for (int r = kStreams; r <= kMixes; ++r) {
      float sum = 0;
      for (int64_t s = group_lane(); s < a.slices; s += kGroupLanes) sum += a.parts[(t * a.slices + s) * (kMixes + 1) + r];
      sum = group_sum(sum);
      if (group_lane() == 0) own[r] = sum;
    }
    group_sync();
    post_and_comb(a, t, own);
    return;
  }
  const int64_t t = blockIdx.x;
  float4 f[kParts][kStreams];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const int64_t d = 4 * (static_cast<int64_t>(threadIdx.x) + p * kManyThreads);
#pragma unroll
    for (int i = 0; i < kStreams; ++i) f[p][i] = d < a.dim ? *reinterpret_cast<const float4*>(a.h.row(t) + i * a.dim + d) : float4{0, 0, 0, 0};
  }
  add_parts(a, t, kMixes, 0, kStreams, mix[0]);
  const float root = sqrtf(mix[0][kMixes] / static_cast<float>(kStreams * a.dim) + a.rms_eps);
  float pre[kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) pre[i] = sigmoid(mix[0][i] / root * a.scale[0] + a.base[i]) + a.hc_eps;
  float4 x[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    x[p] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kStreams; ++i) x[p] = weighted(x[p], pre[i], f[p][i]);
    const float sum = group_sum(square_sum(x[p]));
    if (group_lane() == 0) squares[p * kManyGroups + group_index()] = sum;
  }
  __syncthreads();
  const float inverse = 1.0f / sqrtf(group_sum(squares[group_lane()]) / static_cast<float>(a.dim) + a.rms_eps);
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const int64_t d = 4 * (static_cast<int64_t>(threadIdx.x) + p * kManyThreads);
    if (d < a.dim) store_normed(a, t, d, *reinterpret_cast<const ushort4*>(a.norm + d), x[p], inverse);
  }
}

}  // namespace

Status hc_pre_portable(OpContext& context, const HcPreArgs& a) {
  if (a.h.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const int mixes = static_cast<int>(a.fn.rows);
  const int64_t slices = ceil_div(a.h.cols, kSlice);
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(4 * a.h.rows * slices * (mixes + 1)));
  float* parts = reinterpret_cast<float*>(scratch);
  // Many tokens share one load of fn; few spread over the device.
  const int tokens_per_block = a.h.rows == 1 ? 1 : a.h.rows <= 64 ? kTokensPerPass : 8 * kTokensPerPass;
  DSV4_RETURN_IF_ERROR(launch(gpu, "hc_pre", a.h.rows == 1 ? hc_mix_parts<1> : hc_mix_parts<kTokensPerPass>,
                              {.blocks_x = slices, .blocks_y = ceil_div(a.h.rows, tokens_per_block), .threads = kMixThreads}, rows_of(a.h), rows_of(a.fn),
                              mixes, a.h.cols, a.h.rows, tokens_per_block, parts));
  const HcApplyArgs apply = {
      rows_of(a.h), parts,     slices,   a.base,       a.scale,         a.norm,         static_cast<int>(a.streams), static_cast<int>(a.sinkhorn_iters),
      a.x.cols,     a.rms_eps, a.hc_eps, rows_of(a.x), rows_of(a.post), rows_of(a.comb)};
  const auto aligned = [](const auto& m) { return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.row_stride % 4 == 0; };
  const bool held =
      a.streams == 4 && a.x.cols % 4 == 0 && a.x.cols <= 4 * kApplyThreads && aligned(a.h) && aligned(a.x) && reinterpret_cast<uintptr_t>(a.norm) % 8 == 0;
  constexpr int64_t kManyTokens = 128;  // from here on the device is full
  if (held && a.h.rows >= kManyTokens) {
    return launch(gpu, "hc_pre", hc_apply_many, {.blocks_x = a.h.rows + ceil_div(a.h.rows, kManyGroups), .threads = kManyThreads}, apply, a.h.rows);
  }
  return launch(gpu, "hc_pre", held ? hc_apply_held : hc_apply, {.blocks_x = a.h.rows, .blocks_y = 2, .threads = kApplyThreads}, apply);
}

}  // namespace dsv4::gpu
