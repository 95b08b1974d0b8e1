// Batches of bf16 products on Hopper, such as those of Muon: our own kernel, which computes only
// half of a symmetric product.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Whether the kernel takes this product: a batch of c = alpha a b + beta prior in bf16, or a
// symmetric product, whose rows all begin at multiples of 16 bytes.
bool gemm_batch_takes(const CudaStream&, const GemmArgs&);
void gemm_batch(CudaStream&, const GemmArgs&);

}  // namespace hearth::cuda
