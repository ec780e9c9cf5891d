// hc_pre in two launches. The first splits f = h[t] into slices of kSlice values: a block loads its slice of fn into shared memory (before the
// previous kernel ends: fn is a weight), then for each of its tokens writes the slice's part of every mix and of f.f. The second, per token, adds
// the parts in slice order: block 0 makes pre, x and its norm; block 1 makes post and comb, whose Sinkhorn iterations run in one thread's registers.
// Bound at one token by latency: about 1.5 MB of fn over 64 blocks, then one block's reduction.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/codec.h"

namespace dsv4::gpu {
namespace {

constexpr int kSlice = 256;  // values of f per block
constexpr int kPerLane = kSlice / kGroupLanes;
constexpr int kMixThreads = 256;
constexpr int kApplyThreads = 1024;
constexpr int kMaxStreams = 8;
constexpr int kMaxMixes = (2 + kMaxStreams) * kMaxStreams;

// parts[t][slice][mixes + 1]; the last is the slice's part of f.f.
__global__ void hc_mix_parts(Rows<const float> h, Rows<const float> fn, int mixes, int64_t values, int64_t tokens, int tokens_per_block, float* parts) {
  extern __shared__ float fn_slice[];  // [mixes][kSlice]
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSlice;
  for (int i = static_cast<int>(threadIdx.x); i < mixes * kSlice; i += kMixThreads) {
    const int64_t at = begin + i % kSlice;
    fn_slice[i] = at < values ? fn.row(i / kSlice)[at] : 0.0f;
  }
  __syncthreads();
  wait_previous();
  allow_next();
  const int lane = group_lane();
  for (int64_t t = static_cast<int64_t>(blockIdx.y) * tokens_per_block; t < tokens && t < static_cast<int64_t>(blockIdx.y + 1) * tokens_per_block; ++t) {
    float f[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int64_t at = begin + lane + i * kGroupLanes;
      f[i] = at < values ? h.row(t)[at] : 0.0f;
    }
    float* out = parts + (t * gridDim.x + blockIdx.x) * (mixes + 1);
    for (int r = group_index(); r <= mixes; r += kMixThreads / kGroupLanes) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sum += f[i] * (r < mixes ? fn_slice[r * kSlice + lane + i * kGroupLanes] : f[i]);
      sum = group_sum(sum);
      if (lane == 0) out[r] = sum;
    }
  }
}

// comb from its 16 (m*m) mixed values, in place, by one thread. kStreams > 0 keeps them in registers.
template <int kStreams>
__device__ void sinkhorn(float* values, int runtime_streams, int iterations, float eps) {
  const int m = kStreams > 0 ? kStreams : runtime_streams;
  float local[kStreams > 0 ? kStreams * kStreams : 1];
  float* c = kStreams > 0 ? local : values;
  if (kStreams > 0) {
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i) local[i] = values[i];
  }
#pragma unroll
  for (int r = 0; r < m; ++r) {
    float top = c[r * m], sum = 0;
#pragma unroll
    for (int k = 1; k < m; ++k) top = fmaxf(top, c[r * m + k]);
#pragma unroll
    for (int k = 0; k < m; ++k) sum += c[r * m + k] = expf(c[r * m + k] - top);
#pragma unroll
    for (int k = 0; k < m; ++k) c[r * m + k] = __fdividef(c[r * m + k], sum) + eps;
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    if (iteration > 0) {
#pragma unroll
      for (int r = 0; r < m; ++r) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < m; ++k) sum += c[r * m + k];
        const float inverse = __fdividef(1.0f, sum + eps);
#pragma unroll
        for (int k = 0; k < m; ++k) c[r * m + k] *= inverse;
      }
    }
#pragma unroll
    for (int k = 0; k < m; ++k) {
      float sum = 0;
#pragma unroll
      for (int r = 0; r < m; ++r) sum += c[r * m + k];
      const float inverse = __fdividef(1.0f, sum + eps);
#pragma unroll
      for (int r = 0; r < m; ++r) c[r * m + k] *= inverse;
    }
  }
  if (kStreams > 0) {
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i) values[i] = local[i];
  }
}

struct ApplyArgs {
  Rows<const float> h;
  const float* parts;
  int64_t slices;
  const float* base;
  const float* scale;
  const uint16_t* norm;
  int streams;
  int sinkhorn_iters;
  int64_t dim;
  float rms_eps;
  float hc_eps;
  Rows<float> x, post, comb;
};

// Sums over the slices, in shared memory: mixes [first, last) and, at mix[mixes], f.f. A barrier follows.
__device__ void add_parts(const ApplyArgs& a, int64_t t, int mixes, int first, int last, float* mix) {
  for (int i = first + group_index(); i <= last; i += kApplyThreads / kGroupLanes) {
    const int r = i == last ? mixes : i;
    float sum = 0;
    for (int64_t s = group_lane(); s < a.slices; s += kGroupLanes) sum += a.parts[(t * a.slices + s) * (mixes + 1) + r];
    sum = group_sum(sum);
    if (group_lane() == 0) mix[r] = sum;
  }
  __syncthreads();
}

__device__ void make_post_and_comb(const ApplyArgs& a, int64_t t, float* mix) {
  const int m = a.streams, mixes = (2 + m) * m, i = static_cast<int>(threadIdx.x);
  add_parts(a, t, mixes, m, mixes, mix);
  const float root = sqrtf(mix[mixes] / static_cast<float>(m * a.dim) + a.rms_eps);
  if (i >= kGroupLanes) return;
  for (int k = i; k < m; k += kGroupLanes) a.post.row(t)[k] = 2.0f * sigmoid(mix[m + k] / root * a.scale[1] + a.base[m + k]);
  for (int k = i; k < m * m; k += kGroupLanes) mix[2 * m + k] = mix[2 * m + k] / root * a.scale[2] + a.base[2 * m + k];
  group_sync();
  if (i == 0) {
    if (m == 4) {
      sinkhorn<4>(mix + 2 * m, m, a.sinkhorn_iters, a.hc_eps);
    } else {
      sinkhorn<0>(mix + 2 * m, m, a.sinkhorn_iters, a.hc_eps);
    }
  }
  group_sync();
  for (int k = i; k < m * m; k += kGroupLanes) a.comb.row(t)[k] = mix[2 * m + k];
}

__global__ void __launch_bounds__(kApplyThreads) hc_apply(ApplyArgs a) {
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
__global__ void __launch_bounds__(kApplyThreads) hc_apply_held(ApplyArgs a) {
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
    x = {x.x + pre * f[i].x, x.y + pre * f[i].y, x.z + pre * f[i].z, x.w + pre * f[i].w};
  }
  const float inverse = 1.0f / sqrtf(block_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w, scratch) / static_cast<float>(a.dim) + a.rms_eps);
  if (holds) {
    *reinterpret_cast<float4*>(a.x.row(t) + d) = {decode_bf16(norm.x) * (x.x * inverse), decode_bf16(norm.y) * (x.y * inverse), decode_bf16(norm.z) * (x.z * inverse),
                                                   decode_bf16(norm.w) * (x.w * inverse)};
  }
}

}  // namespace

Status hc_pre_portable(OpContext& context, const HcPreArgs& a) {
  if (a.h.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const int mixes = static_cast<int>(a.fn.rows);
  const int64_t slices = ceil_div(a.h.cols, kSlice);
  DSV4_ASSIGN_OR_RETURN(uint8_t* scratch, gpu.scratch(4 * a.h.rows * slices * (mixes + 1)));
  float* parts = reinterpret_cast<float*>(scratch);
  // Many tokens share one load of fn; few tokens spread over the device. The parts are the same either way.
  const int tokens_per_block = a.h.rows <= 4 ? 1 : a.h.rows <= 64 ? 4 : 16;
  DSV4_RETURN_IF_ERROR(launch(gpu, "hc_pre", hc_mix_parts,
                              {.blocks_x = slices, .blocks_y = ceil_div(a.h.rows, tokens_per_block), .threads = kMixThreads, .shared_bytes = mixes * kSlice * 4}, rows_of(a.h),
                              rows_of(a.fn), mixes, a.h.cols, a.h.rows, tokens_per_block, parts));
  const ApplyArgs apply = {rows_of(a.h), parts, slices, a.base, a.scale, a.norm, static_cast<int>(a.streams), static_cast<int>(a.sinkhorn_iters), a.x.cols, a.rms_eps, a.hc_eps,
                           rows_of(a.x), rows_of(a.post), rows_of(a.comb)};
  const auto aligned = [](const auto& m) { return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.row_stride % 4 == 0; };
  const bool held = a.streams == 4 && a.x.cols % 4 == 0 && a.x.cols <= 4 * kApplyThreads && aligned(a.h) && aligned(a.x) && reinterpret_cast<uintptr_t>(a.norm) % 8 == 0;
  return launch(gpu, "hc_pre", held ? hc_apply_held : hc_apply, {.blocks_x = a.h.rows, .blocks_y = 2, .threads = kApplyThreads}, apply);
}

}  // namespace dsv4::gpu
