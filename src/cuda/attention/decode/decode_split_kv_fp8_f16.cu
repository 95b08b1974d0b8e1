// Split-KV decoding in fp16 over an fp8 cache.
#include "cuda/attention/decode/decode_split_kv.cuh"

namespace hearth::cuda {

template void decode_pieces<__half, uint8_t>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
