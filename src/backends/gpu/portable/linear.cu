// linear and grouped_linear for any weight on any card: a lane group owns one output column n and kRowsPerGroup rows of x; its lanes stride over
// k, decode each weight once for those rows, and reduce in a fixed tree. Rounded activations are made first, once, into scratch. Bound by
// instruction rate, far from the memory limit; the sm90 kernels are the quick ones.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/portable/linear.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / kGroupLanes;
constexpr int kRowsPerGroup = 4;

__global__ void round_activation_rows(Rows<const float> x, int64_t blocks_per_row, float* out) {
  wait_previous();
  allow_next();
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kGroups + group_index();
  if (block >= blocks_per_row) return;
  const float* from = x.row(blockIdx.y) + block * kActivationGroup;
  float* to = out + (blockIdx.y * blocks_per_row + block) * kActivationGroup;
  float v[kActivationGroup / kGroupLanes], amax = 0;
#pragma unroll
  for (int i = 0; i < kActivationGroup / kGroupLanes; ++i) {
    v[i] = from[group_lane() + i * kGroupLanes];
    amax = fmaxf(amax, fabsf(v[i]));
  }
  const float s = decode_e8m0(e4m3_scale_of(group_max(amax)));
#pragma unroll
  for (int i = 0; i < kActivationGroup / kGroupLanes; ++i) to[group_lane() + i * kGroupLanes] = round_e4m3_by(v[i], s);
}

__global__ void round_bf16_rows(Rows<const float> x, int64_t cols, float* out) {
  wait_previous();
  allow_next();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < cols) out[blockIdx.y * cols + i] = decode_bf16(encode_bf16(x.row(blockIdx.y)[i]));
}

// y[t][n] = sum_k w[n][k] x[t][n / rows_per_group * k_cols + k].
__global__ void row_dots(PackedRows w, int64_t n_rows, int64_t rows_per_group, Rows<const float> x, int64_t tokens, Rows<float> y) {
  wait_previous();
  allow_next();
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kGroups + group_index();
  if (n >= n_rows) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRowsPerGroup, offset = n / rows_per_group * w.k;
  const int rows = static_cast<int>(tokens - first < kRowsPerGroup ? tokens - first : kRowsPerGroup);
  float sum[kRowsPerGroup] = {};
  for (int64_t k = group_lane(); k < w.k; k += kGroupLanes) {
    const float v = weight_value(w, n, k);
#pragma unroll
    for (int r = 0; r < kRowsPerGroup; ++r) {
      if (r < rows) sum[r] += v * x.row(first + r)[offset + k];
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsPerGroup; ++r) {
    const float total = group_sum(sum[r]);
    if (r < rows && group_lane() == 0) y.row(first + r)[n] = total;
  }
}

Status launch_dots(GpuContext& gpu, const WeightView& w, int64_t rows_per_group, Rows<const float> x, int64_t tokens, Rows<float> y) {
  return launch(gpu, "linear", row_dots, {.blocks_x = ceil_div(w.n, kGroups), .blocks_y = ceil_div(tokens, kRowsPerGroup), .threads = kThreads},
                packed_rows(gpu, w), w.n, rows_per_group, x, tokens, y);
}

}  // namespace

Status round_activations(GpuContext& gpu, ActivationRounding rounding, Rows<const float> x, int64_t rows, int64_t cols, float* out) {
  if (rounding == ActivationRounding::kBF16) {
    return launch(gpu, "round_activations", round_bf16_rows, {.blocks_x = ceil_div(cols, kThreads), .blocks_y = rows, .threads = kThreads}, x, cols, out);
  }
  const int64_t blocks = cols / kActivationGroup;
  return launch(gpu, "round_activations", round_activation_rows, {.blocks_x = ceil_div(blocks, kGroups), .blocks_y = rows, .threads = kThreads}, x, blocks,
                out);
}

Status linear_portable(OpContext& context, const LinearArgs& a) {
  if (a.x.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const auto rounds = [&](const LinearJob& job) { return a.rounding != ActivationRounding::kNone && takes_rounding(job.weight.format); };
  Rows<const float> rounded{nullptr, a.x.cols};
  for (int j = 0; j < a.num_jobs; ++j) {
    const LinearJob& job = a.jobs[j];
    if (rounds(job) && rounded.data == nullptr) {
      DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(4 * a.x.rows * a.x.cols));
      rounded.data = reinterpret_cast<float*>(scratch);
      DSV4_RETURN_IF_ERROR(round_activations(gpu, a.rounding, rows_of(a.x), a.x.rows, a.x.cols, reinterpret_cast<float*>(scratch)));
    }
    DSV4_RETURN_IF_ERROR(launch_dots(gpu, job.weight, job.weight.n, rounds(job) ? rounded : rows_of(a.x), a.x.rows, rows_of(job.y)));
  }
  return ok_status();
}

Status grouped_linear_portable(OpContext& context, const GroupedLinearArgs& a) {
  if (a.x.rows == 0) return ok_status();
  return launch_dots(gpu_context(context), a.weight, a.weight.n / a.groups, rows_of(a.x), a.x.rows, rows_of(a.y));
}

}  // namespace dsv4::gpu
