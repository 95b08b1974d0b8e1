#include "cuda/device/copies.h"

#include <algorithm>

namespace hearth::cuda {
namespace {

// One thread block per copy.
__global__ void __launch_bounds__(256) copy_listed(const Copy* list) {
  const Copy c = list[blockIdx.x];
  auto* to = reinterpret_cast<uint4*>(c.to);
  const auto* from = reinterpret_cast<const uint4*>(c.from);
  const auto count = int(c.bytes / 16);
#pragma unroll 4
  for (int i = int(threadIdx.x); i < count; i += 256) to[i] = from[i];
}

}  // namespace

bool copies_fit(std::span<const Copy> all) {
  constexpr size_t few = 4;
  constexpr int64_t most = int64_t(1) << 30;
  return all.size() > few && std::ranges::all_of(all, [](const Copy& c) {
           const auto at = reinterpret_cast<uintptr_t>(c.to) | reinterpret_cast<uintptr_t>(c.from);
           return at % 16 == 0 && c.bytes % 16 == 0 && c.bytes <= most;
         });
}

void launch_copies(CudaStream& s, const Copy* list, int64_t count) {
  copy_listed<<<unsigned(count), 256, 0, s.handle>>>(list);
  check_launch("copy");
}

}  // namespace hearth::cuda
