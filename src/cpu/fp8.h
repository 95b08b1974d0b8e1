// fp8 on the CPU: rounding tensors, and products of rounded tensors. The values are exact in bf16
// (a code has at most 4 significant bits, a scale is a power of two), so a product decodes both
// operands to bf16 and runs the product of that type.
#pragma once

#include "core/kernels.h"

namespace hearth::inline sys {
class Threads;
}

namespace hearth::inline cpu {

class Scratch;

// The kernels that depend on the instruction set.
struct Fp8Parts {
  void (*gemm)(Stream&, const GemmArgs&);
  void (*activation)(Stream&, const ActivationArgs&);
  void (*activation_bwd)(Stream&, const ActivationBwdArgs&);
};

// On the threads of a CPU stream.
void gemm_fp8(Stream&, const GemmArgs&, const Fp8Parts&);
void quantise_fp8(Stream&, const QuantiseFp8Args&, const Fp8Parts&);
void advance_fp8(Stream&, const AdvanceFp8Args&);
// For a stream of any kind; null threads: one.
void quantise_fp8(Stream&, Threads*, Scratch&, const QuantiseFp8Args&, const Fp8Parts&);

}  // namespace hearth::inline cpu
