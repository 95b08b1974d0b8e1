// The CUDA kernels of the table in core/kernels.h. Arguments are documented in core/kernel_args.h.
// Tensors are f32, bf16 or f16; accumulation is in f32. Each kernel gives the same bits in every
// run on one GPU and can be captured into a graph.
#pragma once

#include "core/kernels.h"

namespace hearth::cuda {

HEARTH_KERNELS(HEARTH_DECLARE_KERNEL)

void norm_bwd_sums(Stream&, const NormBwdArgs&, const ColumnSumArgs&);
void quantise_fp8(Stream&, const QuantiseFp8Args&);
void advance_fp8(Stream&, const AdvanceFp8Args&);
void draw(Stream&, const DrawArgs&);
void sample(Stream&, const SampleArgs&);

}  // namespace hearth::cuda
