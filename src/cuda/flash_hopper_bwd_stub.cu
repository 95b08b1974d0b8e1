#include "cuda/attention.h"
namespace hearth::cuda {
bool flash_hopper_bwd_takes(const AttnCall&) { return false; }
void flash_hopper_bwd(const AttnCall&, CudaStream&) {}
}  // namespace hearth::cuda
