// Decoding piece by piece in fp32.
#include "cuda/attention_pieces.cuh"

namespace hearth::cuda {

template void decode_pieces<float, float>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
