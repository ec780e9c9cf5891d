// What kernel sources need: launching (checked, with overlap of neighbouring kernels where the device can), lane groups, block sums.
//
// Overlap: on devices of compute capability 9.0 every kernel is launched so that it may start before its predecessor ends. The rules that make
// this safe, for every kernel of this backend:
//   1. wait_previous() comes before the first read or write of anything that a kernel writes. Only weights may be touched earlier.
//   2. allow_next() comes after wait_previous(). So when a kernel runs, all kernels before its predecessor have ended.
// Elsewhere both are empty and kernels run strictly one after another.
#pragma once

#include <cstdint>

#include "backends/gpu/gpu_context.h"
#include "backends/gpu/runtime/vendor.h"
#include "tensor/view.h"

namespace dsv4::gpu {

// Lanes that reduce together. Not the warp width: on devices with wider warps a warp holds several groups.
inline constexpr int kGroupLanes = 32;

struct LaunchShape {
  int64_t blocks_x = 1;
  int64_t blocks_y = 1;
  int64_t blocks_z = 1;
  int threads = 256;
  int shared_bytes = 0;
  int cluster = 1;  // blocks along x that share a cluster; above 1 only on 9.0 devices
};

Status launch_failed(VendorError error, const char* name);

// Launches `kernel` on the context's stream. Nothing happens for an empty grid. `name` is for errors.
template <class... Params, class... Args>
Status launch(GpuContext& context, const char* name, void (*kernel)(Params...), const LaunchShape& shape, const Args&... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0 || shape.blocks_z == 0) return ok_status();
  DSV4_RETURN_IF_ERROR(bind_device(context.properties.index));
  const dim3 grid(static_cast<unsigned>(shape.blocks_x), static_cast<unsigned>(shape.blocks_y), static_cast<unsigned>(shape.blocks_z));
  const dim3 block(static_cast<unsigned>(shape.threads));
  const VendorStream stream = reinterpret_cast<VendorStream>(context.stream);
  constexpr int kDefaultSharedBytes = 48 * 1024;
#if defined(__HIP__)
  if (shape.shared_bytes > kDefaultSharedBytes) {
    const hipError_t e = hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
    if (e != hipSuccess) return launch_failed(e, name);
  }
  kernel<<<grid, block, shape.shared_bytes, stream>>>(static_cast<Params>(args)...);
  const VendorError error = hipGetLastError();
#else
  if (shape.shared_bytes > kDefaultSharedBytes) {
    const cudaError_t e = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
    if (e != cudaSuccess) return launch_failed(e, name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  int count = 0;
  if (context.overlap) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  config.attrs = attributes;
  config.numAttrs = static_cast<unsigned>(count);
  const VendorError error = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
#endif
  ++context.launches;
  return error == kVendorSuccess ? ok_status() : launch_failed(error, name);
}

// Rows of a matrix for the device.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  __host__ __device__ T* row(int64_t r) const { return data + r * stride; }
};
template <class T>
Rows<T> rows_of(const Matrix<T>& m) {
  return {m.data, m.row_stride};
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ inline void wait_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void allow_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Brings the line at `p` into the L2, if the device knows how; it may be written meanwhile, for nothing is kept nearer than that.
__device__ inline void prefetch_l2(const void* p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
  (void)p;
#endif
}
// By one thread of every block of a grid along x: the copy engine brings the block's share into the L2, and nobody waits.
__device__ inline void bring_to_l2(const MemoryRange& range) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int64_t kPiece = 8192;
  for (int64_t at = blockIdx.x * kPiece; at < range.size_bytes; at += gridDim.x * kPiece) {
    const uint32_t size = static_cast<uint32_t>(range.size_bytes - at < kPiece ? (range.size_bytes - at) / 16 * 16 : kPiece);
    if (size != 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const uint8_t*>(range.data) + at), "r"(size));
  }
#else
  (void)range;
#endif
}
__device__ inline int group_lane() { return static_cast<int>(threadIdx.x) % kGroupLanes; }
__device__ inline int group_index() { return static_cast<int>(threadIdx.x) / kGroupLanes; }

// Orders shared memory among the lanes of a group.
__device__ inline void group_sync() {
#if defined(__HIP__)
  __threadfence_block();
#else
  __syncwarp();
#endif
}

template <class T>
__device__ inline T shuffle_xor(T v, int mask) {
#if defined(__HIP__)
  return __shfl_xor(v, mask, kGroupLanes);
#else
  return __shfl_xor_sync(0xffffffffu, v, mask, kGroupLanes);
#endif
}

// Bit i is lane i's answer.
__device__ inline uint32_t group_ballot(bool v) {
#if defined(__HIP__)
  return static_cast<uint32_t>(__ballot(v) >> (threadIdx.x / kGroupLanes * kGroupLanes % warpSize));
#else
  return __ballot_sync(0xffffffffu, v);
#endif
}
// The value lane `source` has.
template <class T>
__device__ inline T shuffle_from(T v, int source) {
#if defined(__HIP__)
  return __shfl(v, source, kGroupLanes);
#else
  return __shfl_sync(0xffffffffu, v, source, kGroupLanes);
#endif
}

// Every lane gets the group's sum, always added in the same tree.
__device__ inline float group_sum(float v) {
  for (int m = kGroupLanes / 2; m > 0; m /= 2) v += shuffle_xor(v, m);
  return v;
}
__device__ inline float group_max(float v) {
  for (int m = kGroupLanes / 2; m > 0; m /= 2) v = fmaxf(v, shuffle_xor(v, m));
  return v;
}

__device__ inline uint32_t group_max(uint32_t v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, v);
#else
  for (int m = kGroupLanes / 2; m > 0; m /= 2) {
    const uint32_t other = shuffle_xor(v, m);
    v = other > v ? other : v;
  }
  return v;
#endif
}
__device__ inline uint32_t group_min(uint32_t v) { return ~group_max(~v); }

template <class T>
__device__ inline bool aligned16(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// Every thread gets the block's sum. `scratch` holds kGroupLanes floats of shared memory; all threads of the block call. The block has a multiple
// of kGroupLanes threads, at most kGroupLanes groups.
__device__ inline float block_sum(float v, float* scratch) {
  const int groups = static_cast<int>(blockDim.x) / kGroupLanes;
  v = group_sum(v);
  __syncthreads();
  if (group_lane() == 0) scratch[group_index()] = v;
  __syncthreads();
  return group_sum(group_lane() < groups ? scratch[group_lane()] : 0.0f);
}
__device__ inline float block_max(float v, float* scratch) {
  const int groups = static_cast<int>(blockDim.x) / kGroupLanes;
  v = group_max(v);
  __syncthreads();
  if (group_lane() == 0) scratch[group_index()] = v;
  __syncthreads();
  return group_max(scratch[group_lane() < groups ? group_lane() : 0]);
}

}  // namespace dsv4::gpu
