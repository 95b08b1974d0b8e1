// Split-KV decoding in bf16.
#include "cuda/attention/decode/decode_split_kv.cuh"

namespace hearth::cuda {

template void decode_pieces<__nv_bfloat16, __nv_bfloat16>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
