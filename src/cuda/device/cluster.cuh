// Blocks of a cluster (Hopper and later): they run at once, wait for one another, and write to each
// other's shared memory.
#pragma once

#include <cstdint>

namespace hearth::cuda {

__device__ __forceinline__ int cluster_rank() {
  uint32_t r = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
  return int(r);
}

// Says that this thread is here, and nothing of what it wrote: that is enough to know that a
// block has begun, and its memory may be written to.
__device__ __forceinline__ void arrive_begun() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// Until every thread of the cluster has arrived. Each wait belongs to one arrival before it.
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Where block `rank` of the cluster has what this block has at `at` of its shared memory.
__device__ __forceinline__ uint32_t in_block(uint32_t at, int rank) {
  uint32_t r = at;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
#endif
  return r;
}

// To an address that in_block() gave; the barrier at `bar`, of the same block, counts the bytes.
__device__ __forceinline__ void put_in_block(uint32_t at, uint32_t bar, const float2& v) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          at),
      "f"(v.x), "f"(v.y), "r"(bar)
      : "memory");
#endif
}
__device__ __forceinline__ void put_in_block(uint32_t at, uint32_t bar, const float4& v) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(at),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar)
      : "memory");
#endif
}

}  // namespace hearth::cuda
