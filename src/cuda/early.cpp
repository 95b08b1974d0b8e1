#include <cstdlib>
#include <cstring>

#include "cuda/stream.h"

namespace hearth::cuda {

bool starts_early(const Card& card, const void* kernel) {
  const char* set = std::getenv("HEARTH_EARLY");
  if (card.major < 9 || (set && std::strcmp(set, "0") == 0)) return false;
  cudaFuncAttributes a;
  check(cudaFuncGetAttributes(&a, kernel), "asking for a kernel");
  return a.ptxVersion >= 90;
}

}  // namespace hearth::cuda
