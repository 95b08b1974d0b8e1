// The instructions that the persistent kernel needs beyond plain C++. The host emulation of its
// tests (tests/emulated) replaces this file and device/quick_math.cuh, and nothing else.
#pragma once

#include "cuda/device/dependent_launch.cuh"
#include "cuda/device/hopper.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/persistent/phase.h"

namespace hearth::cuda::persistent {

__device__ __forceinline__ int thread_index() { return int(threadIdx.x); }
__device__ __forceinline__ int block_index() { return int(blockIdx.x); }
__device__ __forceinline__ int block_count() { return int(gridDim.x); }

__device__ __forceinline__ void sync_block() { __syncthreads(); }
__device__ __forceinline__ void sync_compute() { hopper::named_sync(1, compute_threads); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

// The sampler, which follows, may be launched while the step still runs.
__device__ __forceinline__ void announce_end() { let_next_start(); }

// All lanes of a warp call these.
__device__ __forceinline__ float shuffle_xor(float x, int lanes) {
  return __shfl_xor_sync(~0u, x, lanes);
}
// d (16, 8) += a (16, 16) b (16, 8) in bf16: see mma.sync.m16n8k16.
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  multiply(d, a, b0, b1, __nv_bfloat16());
}

// --- packets ---

__device__ __forceinline__ uint64_t read_packet(const uint64_t* at) {
  uint64_t p;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(p) : "l"(at) : "memory");
  return p;
}
__device__ __forceinline__ Packets read_packets(const uint64_t* at) {
  Packets p;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(p.first), "=l"(p.second)
               : "l"(at)
               : "memory");
  return p;
}
__device__ __forceinline__ void write_packet(uint64_t* at, uint64_t p) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(p) : "memory");
}

// About a minute. A block that waits longer waits for a packet that will never come.
constexpr uint32_t most_polls = 1u << 27;

// Waits for a packet that was read too early.
__device__ __forceinline__ void await_packet(uint64_t& p, const uint64_t* at, uint32_t number) {
  for (uint32_t polls = 0; uint32_t(p >> 32) != number; ++polls) {
    if (polls > most_polls) __trap();
    p = read_packet(at);
  }
}
__device__ __forceinline__ void await_packets(Packets& p, const uint64_t* at, uint32_t number) {
  for (uint32_t polls = 0; uint32_t(p.first >> 32) != number || uint32_t(p.second >> 32) != number;
       ++polls) {
    if (polls > most_polls) __trap();
    p = read_packets(at);
  }
}

// --- barriers and copies in shared memory ---

__device__ __forceinline__ void barrier_init(uint64_t* bar, int arrivals) {
  hopper::barrier_init(hopper::shared_at(bar), arrivals);
}
__device__ __forceinline__ void barrier_init_fence() { hopper::barrier_init_fence(); }
__device__ __forceinline__ void barrier_arrive(uint64_t* bar) {
  hopper::barrier_arrive(hopper::shared_at(bar));
}
__device__ __forceinline__ void barrier_expect(uint64_t* bar, uint32_t bytes) {
  hopper::barrier_expect(hopper::shared_at(bar), bytes);
}
__device__ __forceinline__ void barrier_wait(uint64_t* bar, uint32_t parity) {
  hopper::barrier_wait(hopper::shared_at(bar), parity);
}

// Copies from global to shared memory, multiples of 16 bytes. The barrier counts the bytes.
__device__ __forceinline__ void copy_shared(void* to, const void* from, uint32_t bytes,
                                            uint64_t* bar) {
  hopper::bulk_load(hopper::shared_at(to), from, bytes, hopper::shared_at(bar));
}
// The same for what one block reads once a step: the L2 cache may evict it first.
__device__ __forceinline__ void copy_once(void* to, const void* from, uint32_t bytes,
                                          uint64_t* bar) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(hopper::shared_at(to)),
      "l"(from), "r"(bytes), "r"(hopper::shared_at(bar)), "l"(policy)
      : "memory");
}

// Two floats rounded to bf16, the first in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float x, float y) {
  return pack(x, y, __nv_bfloat16());
}
__device__ __forceinline__ float from_bits(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t bits_of(float x) { return __float_as_uint(x); }

}  // namespace hearth::cuda::persistent
