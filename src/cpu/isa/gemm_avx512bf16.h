// bf16 gemm() with VDPBF16PS: the outer-product kernel with a pair of k in each dword.
#pragma once

#include "cpu/isa/gemm_outer.h"

namespace hearth::HEARTH_ISA {

struct PairStep {
  HEARTH_INLINE static vf add(vf c, vf a, vf b) {
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
  }
};

constexpr GemmKernel bf16_kernel() { return outer_kernel<AsPair, PairStep>(); }

}  // namespace hearth::HEARTH_ISA
