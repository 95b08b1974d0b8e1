#include "cuda/device/probe.h"

#include <fmt/format.h>

#include "cuda/attention/attention.h"
#include "cuda/backend.h"

namespace hearth {
namespace cuda {

Card card_properties(int index) {
  Card c;
  c.index = index;
  const auto get = [&](cudaDeviceAttr a) {
    int v = 0;
    check(cudaDeviceGetAttribute(&v, a, index), "asking the card");
    return v;
  };
  c.major = get(cudaDevAttrComputeCapabilityMajor);
  c.minor = get(cudaDevAttrComputeCapabilityMinor);
  c.processors = get(cudaDevAttrMultiProcessorCount);
  c.shared_bytes = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  c.l2_bytes = get(cudaDevAttrL2CacheSize);
  return c;
}

}  // namespace cuda

namespace {

std::string version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

// Why no GPU can be used, in words a user can act on.
std::string why(cudaError_t e, int driver, int runtime) {
  if (driver == 0 || e == cudaErrorNoDevice)
    return driver == 0 ? "there is no NVIDIA driver on this machine"
                       : "the driver sees no card on this machine";
  if (e == cudaErrorInsufficientDriver)
    return fmt::format("the driver is for CUDA {}, this build needs {}: update the driver",
                       version(driver), version(runtime));
  return fmt::format("CUDA says: {}", cudaGetErrorString(e));
}

constexpr int64_t least_free = int64_t(512) << 20;  // memory a backend needs before any model

}  // namespace

CudaCard cuda_card(int index) {
  CudaCard c;
  c.index = index;
  cudaDeviceProp p;
  cudaError_t e = cudaGetDeviceProperties(&p, index);
  if (e != cudaSuccess) {
    c.problem = cudaGetErrorString(e);
    return c;
  }
  c.name = p.name, c.major = p.major, c.minor = p.minor, c.processors = p.multiProcessorCount;
  c.memory_bytes = int64_t(p.totalGlobalMem);
  if (e = cudaSetDevice(index); e == cudaSuccess) {
    size_t free = 0, total = 0;
    e = cudaMemGetInfo(&free, &total);
    c.free_bytes = int64_t(free);
  }
  if (e != cudaSuccess) {
    cudaGetLastError();
    c.problem = e == cudaErrorMemoryAllocation
                    ? "another process holds all of its memory"
                    : fmt::format("it cannot be used: {}", cudaGetErrorString(e));
  } else if (c.free_bytes < least_free) {
    c.problem = fmt::format("only {} MiB of its memory are free: another process holds the rest",
                            c.free_bytes >> 20);
  } else if (c.major < 8) {
    c.problem = fmt::format("its compute capability is {}.{}, hearth needs 8.0", c.major, c.minor);
  } else if (!cuda::has_code_for_this_card()) {
    c.problem = fmt::format(
        "this build has no code for compute capability {}.{}: build on this "
        "machine, or with HEARTH_CUDA_ARCHS=all",
        c.major, c.minor);
  }
  c.gets = fmt::format("attention by {}; bf16, fp16, tf32 and fp32",
                       c.major == 9 && cuda::flash_hopper_takes({})
                           ? "wgmma for heads of 64 and 128, mma.sync for others"
                           : "mma.sync");
  return c;
}

CudaDriver cuda_driver() {
  CudaDriver r;
  cudaDriverGetVersion(&r.driver);
  cudaRuntimeGetVersion(&r.runtime);
  const cudaError_t e = cudaGetDeviceCount(&r.cards);
  if (e == cudaSuccess && r.cards > 0) return r;
  cudaGetLastError();
  r.cards = 0, r.problem = why(e, r.driver, r.runtime);
  return r;
}

std::vector<CudaCard> cuda_cards() {
  std::vector<CudaCard> r;
  int current = 0;
  const bool known = cudaGetDevice(&current) == cudaSuccess;
  for (int i = 0; i < cuda_driver().cards; ++i) r.push_back(cuda_card(i));
  if (known) cudaSetDevice(current);  // a backend may be using that GPU
  return r;
}

}  // namespace hearth
