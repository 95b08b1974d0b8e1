// The kernels of one instruction set, gathered into its table by table.cpp. What each computes is
// documented in core/kernel_args.h.
#pragma once

#include "core/kernels.h"
#include "cpu/fp8.h"

namespace hearth::HEARTH_ISA {

HEARTH_KERNELS(HEARTH_DECLARE_KERNEL)

void gemm_quantised(Stream&, const GemmQuantisedArgs&);
void quantise_fp8(Stream&, const QuantiseFp8Args&);
void draw(Stream&, const DrawArgs&);

constexpr Fp8Parts fp8_parts{gemm,     activation,       activation_bwd, norm,
                             norm_bwd, qk_norm_rope_bwd, attention_bwd,  cross_entropy};

}  // namespace hearth::HEARTH_ISA
