#include "cuda/device/pinned_memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "sys/cores.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth::cuda {
namespace {

constexpr int64_t mib = 1 << 20;
constexpr int64_t large = 32 * mib;

}  // namespace

PinnedMemory::PinnedMemory(int card) {
  int same_address = 0;  // kernels use the host's pointers
  const cudaError_t e =
      cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, card);
  can_register_ = e == cudaSuccess && same_address;
}

// cudaHostAlloc holds a lock of the driver while one thread zeroes every page, which takes most of
// a second per GB, and launches of other threads wait for the lock. So several threads make the
// pages first, large ones if possible; pinning pages that exist is short. Null: not possible here.
std::byte* PinnedMemory::registered(int64_t bytes) {
  constexpr int64_t page = 4096;
  void* p =
      mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, size_t(bytes), MADV_HUGEPAGE);  // best effort: failure only costs speed
  auto* const data = static_cast<std::byte*>(p);
  Threads threads(std::min(8, usable_threads()));
  threads.ranges(bytes, large, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += page) data[at] = {};
  });
  if (cudaHostRegister(p, size_t(bytes), cudaHostRegisterMapped) == cudaSuccess) {
    const std::lock_guard lock(mutex_);
    registered_.insert(data);
    return data;
  }
  cudaGetLastError();
  munmap(p, size_t(bytes));
  return nullptr;
}

std::byte* PinnedMemory::allocate(int64_t bytes, const std::string& what) {
  if (can_register_ && bytes >= large)
    if (std::byte* p = registered(bytes)) return p;
  void* p = nullptr;
  const cudaError_t e = cudaHostAlloc(&p, size_t(bytes), cudaHostAllocMapped);
  if (e != cudaSuccess) {
    cudaGetLastError();
    fail("cuda", "expected {} MiB of pinned host memory for {}, got: {}", bytes / mib, what,
         cudaGetErrorString(e));
  }
  std::memset(p, 0, size_t(bytes));
  return static_cast<std::byte*>(p);
}

void PinnedMemory::release(std::byte* p, int64_t bytes) {
  bool ours = false;
  {
    const std::lock_guard lock(mutex_);
    ours = registered_.erase(p) > 0;
  }
  if (!ours) return void(cudaFreeHost(p));
  cudaHostUnregister(p);
  munmap(p, size_t(bytes));
}

}  // namespace hearth::cuda
