// bf16 gemm() for instruction sets without bf16 products: widened to fp32 while packing, or in
// registers if there are few rows.
#pragma once

#include "cpu/isa/gemm_outer.h"

namespace hearth::HEARTH_ISA {

constexpr GemmKernel bf16_kernel() { return outer_kernel<AsFloat<bf16>, FloatStep, Widened>(); }

}  // namespace hearth::HEARTH_ISA
