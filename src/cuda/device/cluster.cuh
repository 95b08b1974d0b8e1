// Thread block clusters (Hopper and later): blocks that run at the same time, wait for each other
// and write to each other's shared memory.
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

// Arrives without releasing this thread's writes. Enough to tell the other blocks that this block
// has started and that its shared memory may be written.
__device__ __forceinline__ void arrive_begun() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// Arrives, and releases this thread's writes.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// Waits until every thread of the cluster has arrived. Each wait pairs with one earlier arrival.
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The address in block `rank` of the cluster that corresponds to `at` in this block.
__device__ __forceinline__ uint32_t in_block(uint32_t at, int rank) {
  uint32_t r = at;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
#endif
  return r;
}

// Arrives at an mbarrier whose address is from in_block(), after reads. It does not release writes
// to the other block: that takes a fence that waits for all of this thread's stores.
__device__ __forceinline__ void arrive_in_block(uint32_t bar) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
#endif
}

// Stores to an address from in_block(); the mbarrier at `bar`, in the same block, counts the bytes.
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
