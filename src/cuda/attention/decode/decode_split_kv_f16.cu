// Split-KV decoding in fp16.
#include "cuda/attention/decode/decode_split_kv.cuh"

namespace hearth::cuda {

template void decode_pieces<__half, __half>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
