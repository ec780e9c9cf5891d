// argmax: two passes. Blocks of the first each scan a slice of a row; the second takes the best of a row's slices. A candidate is one 64-bit key:
// the value in an order-keeping integer form, then the complemented index, so that the greatest key is the greatest value at the lowest index.
// Bound by reading the logits once.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/runtime/kernel.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSliceColumns = 4096;
constexpr unsigned long long kNanKey = ~0ull;

__device__ unsigned long long key_of(float x, int64_t index) {
  if (x != x) return kNanKey;
  if (x == 0.0f) x = 0.0f;  // -0 ties with +0
  const uint32_t u = __float_as_uint(x);
  const uint32_t ordered = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}

__device__ unsigned long long block_best(unsigned long long key) {
  __shared__ unsigned long long best[kThreads / kGroupLanes];
  for (int m = kGroupLanes / 2; m > 0; m /= 2) {
    const unsigned long long other = shuffle_xor(key, m);
    if (other > key) key = other;
  }
  if (group_lane() == 0) best[group_index()] = key;
  __syncthreads();
  for (int g = 0; g < kThreads / kGroupLanes; ++g) {
    if (best[g] > key) key = best[g];
  }
  return key;
}

__global__ void argmax_slices(Rows<const float> logits, int64_t cols, unsigned long long* keys) {
  wait_previous();
  allow_next();
  const int64_t begin = blockIdx.x * kSliceColumns, end = begin + kSliceColumns < cols ? begin + kSliceColumns : cols;
  const float* x = logits.row(blockIdx.y);
  unsigned long long key = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const unsigned long long k = key_of(x[i], i);
    if (k > key) key = k;
  }
  key = block_best(key);
  if (threadIdx.x == 0) keys[blockIdx.y * gridDim.x + blockIdx.x] = key;
}

__global__ void argmax_rows(const unsigned long long* keys, int64_t slices, int32_t* ids) {
  wait_previous();
  allow_next();
  unsigned long long key = 0;
  for (int64_t i = threadIdx.x; i < slices; i += kThreads) {
    const unsigned long long k = keys[blockIdx.x * slices + i];
    if (k > key) key = k;
  }
  key = block_best(key);
  if (threadIdx.x == 0) ids[blockIdx.x] = key == kNanKey ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

}  // namespace

Status argmax_portable(OpContext& context, const ArgmaxArgs& a) {
  if (a.logits.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const int64_t slices = ceil_div(a.logits.cols, kSliceColumns);
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(8 * a.logits.rows * slices));
  auto* keys = reinterpret_cast<unsigned long long*>(scratch);
  DSV4_RETURN_IF_ERROR(
      launch(gpu, "argmax", argmax_slices, {.blocks_x = slices, .blocks_y = a.logits.rows, .threads = kThreads}, rows_of(a.logits), a.logits.cols, keys));
  return launch(gpu, "argmax", argmax_rows, {.blocks_x = a.logits.rows, .threads = kThreads}, keys, slices, a.ids.data);
}

}  // namespace dsv4::gpu
