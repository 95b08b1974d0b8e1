// Kernels: the whole contract between the core and a backend. One table per backend (and per CPU
// ISA), filled by designated initialisers. What an entry computes, and the shapes of its tensors,
// are documented at its argument struct in core/kernel_args.h.
//
// A null entry means "unsupported here" and is reported with the op's name when a program is bound
// to the backend. Entries with a default are optional: no op needs them.
#pragma once

#include "core/kernel_args.h"

namespace hearth::inline core {

// What a backend launches on: each derives its own (a thread pool, a CUDA stream) and casts back.
struct Stream {};

struct Kernels {
  const char* name;

  void (*gemm)(Stream&, const GemmArgs&);
  // Absent if the backend multiplies plain weights only; Backend::multiplies() gives the formats.
  void (*gemm_quantised)(Stream&, const GemmQuantisedArgs&) = nullptr;
  // For products that norm_gemm_takes() accepts: those for which fusing the norm is faster.
  void (*norm_gemm)(Stream&, const NormGemmArgs&) = nullptr;
  bool (*norm_gemm_takes)(Stream&, int64_t rows, int64_t width, int64_t columns, DType) = nullptr;
  void (*column_sum)(Stream&, const ColumnSumArgs&);
  // Absent if the backend has no fp8 products.
  void (*quantise_fp8)(Stream&, const QuantiseFp8Args&) = nullptr;
  void (*advance_fp8)(Stream&, const AdvanceFp8Args&) = nullptr;

  void (*embed)(Stream&, const EmbedArgs&);
  void (*embed_bwd)(Stream&, const EmbedBwdArgs&);
  void (*scatter_rows)(Stream&, const ScatterRowsArgs&);
  void (*previous_tokens)(Stream&, const PreviousTokensArgs&);

  void (*norm)(Stream&, const NormArgs&);
  void (*norm_bwd)(Stream&, const NormBwdArgs&);
  void (*qk_norm_rope)(Stream&, const QkNormRopeArgs&);
  void (*qk_norm_rope_bwd)(Stream&, const QkNormRopeBwdArgs&);

  void (*attention)(Stream&, const AttentionArgs&);
  void (*attention_bwd)(Stream&, const AttentionBwdArgs&);
  void (*attention_cached)(Stream&, const AttentionCachedArgs&);

  void (*activation)(Stream&, const ActivationArgs&);
  void (*activation_bwd)(Stream&, const ActivationBwdArgs&);
  void (*output_gate)(Stream&, const OutputGateArgs&);
  void (*output_gate_bwd)(Stream&, const OutputGateBwdArgs&);
  void (*dropout)(Stream&, const DropoutArgs&);
  void (*add)(Stream&, const AddArgs&);
  void (*mix)(Stream&, const MixArgs&);
  void (*mix_bwd)(Stream&, const MixBwdArgs&);
  void (*copy)(Stream&, const CopyArgs&);
  // Absent where the host draws initial values.
  void (*draw)(Stream&, const DrawArgs&) = nullptr;

  void (*cross_entropy)(Stream&, const CrossEntropyArgs&);
  void (*mean_loss)(Stream&, const MeanLossArgs&);
  void (*logprob)(Stream&, const LogprobArgs&);
  void (*logprob_bwd)(Stream&, const LogprobBwdArgs&);
  // Absent where the host samples as fast.
  void (*sample)(Stream&, const SampleArgs&) = nullptr;

  void (*sum_squares)(Stream&, const SumSquaresArgs&);
  void (*gate_update)(Stream&, const GateUpdateArgs&);
  void (*update_weights)(Stream&, const UpdateArgs&);
  void (*unit_matrix)(Stream&, const UnitMatrixArgs&);
  void (*neuron_factors)(Stream&, const NeuronFactorsArgs&);
};

}  // namespace hearth::inline core
