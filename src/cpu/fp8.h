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
  void (*norm)(Stream&, const NormArgs&);
  void (*norm_bwd)(Stream&, const NormBwdArgs&);
  void (*qk_norm_rope_bwd)(Stream&, const QkNormRopeBwdArgs&);
  void (*attention_bwd)(Stream&, const AttentionBwdArgs&);
  void (*cross_entropy)(Stream&, const CrossEntropyArgs&);
};

// What a call runs on. A stream of any kind; null threads: one.
struct Fp8Run {
  Stream& stream;
  Threads* threads;
  Scratch& scratch;
  const Fp8Parts& parts;
};
// On the threads of a CPU stream.
Fp8Run fp8_run(Stream&, const Fp8Parts&);

void quantise_fp8(const Fp8Run&, const QuantiseFp8Args&);
// The kernels of these names for calls with an Fp8Output.
void norm_fp8(const Fp8Run&, const NormArgs&);
void norm_bwd_fp8(const Fp8Run&, const NormBwdArgs&);
void qk_norm_rope_bwd_fp8(const Fp8Run&, const QkNormRopeBwdArgs&);
void attention_bwd_fp8(const Fp8Run&, const AttentionBwdArgs&);
void cross_entropy_fp8(const Fp8Run&, const CrossEntropyArgs&);

void advance_fp8(Stream&, const AdvanceFp8Args&);
// Products on a CPU stream.
void gemm_fp8(Stream&, const GemmArgs&, const Fp8Parts&);

}  // namespace hearth::inline cpu
