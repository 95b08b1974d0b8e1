// bf16 gemm() for sets without bf16 products: widened to fp32 while packing, or in registers where
// the rows are few.
#pragma once

#include "cpu/isa/gemm_outer.h"

namespace hearth::HEARTH_ISA {

constexpr GemmKernel bf16_kernel() { return outer_kernel<AsFloat<bf16>, FloatStep, Widened>(); }

}  // namespace hearth::HEARTH_ISA
