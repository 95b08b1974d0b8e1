#include <cstdlib>
#include <cstring>

#include "cuda/stream.h"

namespace hearth::cuda {

bool has_clusters(const Card& card, const void* kernel) {
  if (card.major < 9) return false;
  cudaFuncAttributes a;
  check(cudaFuncGetAttributes(&a, kernel), "asking for a kernel");
  return a.ptxVersion >= 90;
}

bool starts_early(const Card& card, const void* kernel) {
  const char* set = std::getenv("HEARTH_EARLY");
  return !(set && std::strcmp(set, "0") == 0) && has_clusters(card, kernel);  // the same cards
}

}  // namespace hearth::cuda
