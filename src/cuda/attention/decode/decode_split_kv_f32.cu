// Split-KV decoding in fp32.
#include "cuda/attention/decode/decode_split_kv.cuh"

namespace hearth::cuda {

template void decode_pieces<float, float>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
