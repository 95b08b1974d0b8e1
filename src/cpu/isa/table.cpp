// The table of this instruction set's kernels.
#include "cpu/fp8.h"
#include "cpu/isa/kernels.h"

#define HEARTH_NAME_OF(isa) #isa
#define HEARTH_NAME(isa) HEARTH_NAME_OF(isa)
#define HEARTH_ISA_KERNEL(name, Args) .name = HEARTH_ISA::name,

namespace hearth::HEARTH_ISA {

extern const Kernels kernels;

const Kernels kernels{.name = "cpu " HEARTH_NAME(HEARTH_ISA),
                      .gemm_quantised = gemm_quantised,
                      .quantise_fp8 = quantise_fp8,
                      .advance_fp8 = hearth::advance_fp8,
                      .draw = draw,
                      HEARTH_KERNELS(HEARTH_ISA_KERNEL)};

}  // namespace hearth::HEARTH_ISA
