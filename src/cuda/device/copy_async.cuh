// Asynchronous copies of 16 bytes from global to shared memory that bypass the registers (Ampere
// and later). The bytes are there once the group they were committed with has been waited for.
#pragma once

#include <cstdint>

namespace hearth::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
               "l"(global)
               : "memory");
}

// If not `real`, writes 16 zero bytes and reads nothing.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool real) {
  const int bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

// Waits for all groups except the last `left`.
template <int left>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

}  // namespace hearth::cuda
