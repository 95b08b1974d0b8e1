// In place of the Hopper kernels in a build for other cards: it has code for no call.
#include "core/error.h"
#include "cuda/attention.h"

namespace hearth::cuda {

bool flash_hopper_takes(const AttnCall&) { return false; }
bool flash_hopper_bwd_takes(const AttnCall&) { return false; }
void flash_hopper(const AttnCall&, CudaStream&) {
  fail("cuda", "expected no call of flash_hopper");
}
void flash_hopper_bwd(const AttnCall&, CudaStream&) {
  fail("cuda", "expected no call of flash_hopper_bwd");
}

}  // namespace hearth::cuda
