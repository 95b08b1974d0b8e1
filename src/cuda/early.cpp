#include "cuda/early.cuh"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace hearth::cuda {
namespace {

bool can_start_early(const Card& card, const void* kernel) {
  const char* set = std::getenv("HEARTH_EARLY");
  if ((set && std::strcmp(set, "0") == 0) || !has_clusters(card, kernel)) return false;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "dividing a processor's memory");
  return true;
}

}  // namespace

bool has_clusters(const Card& card, const void* kernel) {
  if (card.major < 9) return false;
  cudaFuncAttributes a;
  check(cudaFuncGetAttributes(&a, kernel), "asking for a kernel");
  return a.ptxVersion >= 90;
}

bool starts_early(const Card& card, const void* kernel) {
  static std::mutex mutex;
  static std::unordered_map<const void*, bool> known;
  const std::lock_guard lock(mutex);
  const auto at = known.find(kernel);
  return at != known.end() ? at->second : (known[kernel] = can_start_early(card, kernel));
}

}  // namespace hearth::cuda
