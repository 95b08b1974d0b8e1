// Decoding piece by piece in 16 bits.
#include "cuda/attention_pieces.cuh"

namespace hearth::cuda {

template void decode_pieces<__nv_bfloat16, __nv_bfloat16>(const Decode&, CudaStream&);
template void decode_pieces<__half, __half>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
