// Split-KV decoding in bf16 over an fp8 cache.
#include "cuda/attention/decode/decode_split_kv.cuh"

namespace hearth::cuda {

template void decode_pieces<__nv_bfloat16, uint8_t>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
