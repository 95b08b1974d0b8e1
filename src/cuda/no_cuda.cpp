// The CUDA backend of a build without a CUDA compiler: every function reports that it is missing.
#include "cuda/backend.h"
#include "sys/error.h"

namespace hearth {

static constexpr const char* absent =
    "this build has no CUDA backend (built without nvcc, or with HEARTH_CUDA=off)";

CudaDriver cuda_driver() { return {.problem = absent}; }
CudaCard cuda_card(int index) { return {.index = index, .problem = absent}; }
std::vector<CudaCard> cuda_cards() { return {}; }

std::unique_ptr<Backend> make_cuda_backend(const CudaSpec&) {
  fail("device", "expected a CUDA card, got none: {}; use --device cpu", absent);
}

}  // namespace hearth
