// The CUDA backend of a build without a CUDA compiler: it says that it is not there.
#include "core/error.h"
#include "cuda/backend.h"

namespace hearth {

static constexpr const char* absent = "this build has no CUDA backend (no nvcc when it was built)";

CudaCards cuda_cards() { return {.cards = {}, .problem = absent}; }

std::unique_ptr<Backend> make_cuda_backend(const CudaSpec&) {
  fail("device", "expected a CUDA card, got none: {}; use --device cpu", absent);
}

}  // namespace hearth
