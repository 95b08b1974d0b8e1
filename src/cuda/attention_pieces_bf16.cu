// Decoding piece by piece in bf16.
#include "cuda/attention_pieces.cuh"

namespace hearth::cuda {

template void decode_pieces<__nv_bfloat16, __nv_bfloat16>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
