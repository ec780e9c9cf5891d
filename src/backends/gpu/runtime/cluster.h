// Clusters of thread blocks that share a barrier and each other's shared memory (compute capability 9.0).
#pragma once

#include <cstdint>

#include "base/status.h"

namespace dsv4::gpu {

// The most blocks any 9.0 device allows without being asked.
inline constexpr int kPortableCluster = 8;

// Allows launches of `kernel` with more than kPortableCluster blocks to a cluster.
Status allow_large_clusters(const void* kernel);

#if defined(__CUDACC__)
// The block's place in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barrier of the cluster in two halves; every thread does both. What was written before arriving is seen after waiting, in any block's shared memory.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Stores into the shared memory of the block with this rank, at the place that `local` has in one's own.
__device__ inline uint32_t cluster_address(const void* local, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(local))), "r"(rank));
  return remote;
}
__device__ inline void store_in_cluster(float* local, uint32_t rank, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address(local, rank)), "f"(v) : "memory");
}
__device__ inline void store_in_cluster(uint32_t* local, uint32_t rank, uint32_t v) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(cluster_address(local, rank)), "r"(v) : "memory");
}
__device__ inline void store_in_cluster(uint2* local, uint32_t rank, uint2 v) {
  asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(cluster_address(local, rank)), "r"(v.x), "r"(v.y) : "memory");
}
__device__ inline void add_in_cluster(uint32_t* local, uint32_t rank, uint32_t v) {
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(cluster_address(local, rank)), "r"(v) : "memory");
}
#endif

}  // namespace dsv4::gpu
