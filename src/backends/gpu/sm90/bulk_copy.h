// The copy engine and its barriers in shared memory: a producer waits until a stage is empty, says how many bytes will come and starts copies; consumers
// wait until it is full. Addresses and sizes are multiples of 16 bytes.
#pragma once

#include <cstdint>

namespace dsv4::gpu {

// Before use: a fence and a barrier of the block (publish_barriers, __syncthreads).
__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ inline void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits for the end of the barrier's phase of this parity, asleep for up to 10 ms at a time.
__device__ inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, 10000000; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  }
}

__device__ inline void bulk_load(uint32_t to_shared, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to_shared), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// What was stored to shared memory must be published (fence.proxy.async) by each thread that did, and a barrier passed.
__device__ inline void bulk_store(void* to, uint32_t from_shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2; cp.async.bulk.commit_group;" ::"l"(to), "r"(from_shared), "r"(bytes) : "memory");
}
// This thread's stores have read shared memory; are done.
__device__ inline void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace dsv4::gpu
