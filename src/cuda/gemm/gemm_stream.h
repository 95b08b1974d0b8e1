// Products of up to 16 rows on Hopper, for decoding: weights stream through shared memory.
#pragma once

#include "cuda/gemm/gemm_rows16.h"

namespace hearth::cuda {

// Whether the kernel takes a product of these sizes. b is transposed (a weight), and packed or not.
bool gemm_stream_takes(const CudaStream&, int64_t rows, int64_t width, DType, bool normed);

void gemm_stream(CudaStream&, const GemmArgs&, const FewNormed* normed = nullptr);
void gemm_stream_quantised(CudaStream&, const GemmQuantisedArgs&,
                           const FewNormed* normed = nullptr);

}  // namespace hearth::cuda
