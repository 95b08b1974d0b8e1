// Kernels: the whole contract between the core and a backend. One table per backend (and per CPU
// ISA). What an entry computes, and the shapes of its tensors, are documented at its argument
// struct in core/kernel_args.h.
//
// A new kernel is one line of the list below: the line adds the entry to the table, declares the
// function in every backend, and puts the function into every backend's table.
#pragma once

#include "core/kernel_args.h"

// The kernels that every backend has.
#define HEARTH_KERNELS(KERNEL)                   \
  KERNEL(gemm, GemmArgs)                         \
  KERNEL(column_sum, ColumnSumArgs)              \
  KERNEL(embed, EmbedArgs)                       \
  KERNEL(embed_bwd, EmbedBwdArgs)                \
  KERNEL(scatter_rows, ScatterRowsArgs)          \
  KERNEL(previous_tokens, PreviousTokensArgs)    \
  KERNEL(further_tokens, FurtherTokensArgs)      \
  KERNEL(norm, NormArgs)                         \
  KERNEL(norm_bwd, NormBwdArgs)                  \
  KERNEL(qk_norm_rope, QkNormRopeArgs)           \
  KERNEL(qk_norm_rope_bwd, QkNormRopeBwdArgs)    \
  KERNEL(offset_keys, OffsetKeysArgs)            \
  KERNEL(attention, AttentionArgs)               \
  KERNEL(attention_bwd, AttentionBwdArgs)        \
  KERNEL(attention_cached, AttentionCachedArgs)  \
  KERNEL(distance_bias, DistanceBiasArgs)        \
  KERNEL(distance_bias_bwd, DistanceBiasBwdArgs) \
  KERNEL(activation, ActivationArgs)             \
  KERNEL(activation_bwd, ActivationBwdArgs)      \
  KERNEL(output_gate, OutputGateArgs)            \
  KERNEL(output_gate_bwd, OutputGateBwdArgs)     \
  KERNEL(dropout, DropoutArgs)                   \
  KERNEL(add, AddArgs)                           \
  KERNEL(mix, MixArgs)                           \
  KERNEL(mix_bwd, MixBwdArgs)                    \
  KERNEL(copy, CopyArgs)                         \
  KERNEL(cross_entropy, CrossEntropyArgs)        \
  KERNEL(mean_loss, MeanLossArgs)                \
  KERNEL(logprob, LogprobArgs)                   \
  KERNEL(logprob_bwd, LogprobBwdArgs)            \
  KERNEL(sum_squares, SumSquaresArgs)            \
  KERNEL(gate_update, GateUpdateArgs)            \
  KERNEL(update_weights, UpdateArgs)             \
  KERNEL(unit_matrix, UnitMatrixArgs)            \
  KERNEL(neuron_factors, NeuronFactorsArgs)      \
  HEARTH_MOE_KERNELS(KERNEL)                     \
  HEARTH_MLA_KERNELS(KERNEL)

#define HEARTH_DECLARE_KERNEL(name, Args) void name(Stream&, const Args&);
#define HEARTH_KERNEL_POINTER(name, Args) void (*name)(Stream&, const Args&);

namespace hearth::inline core {

// What a backend launches on: each derives its own (a thread pool, a CUDA stream) and casts back.
struct Stream {};

struct Kernels {
  const char* name;

  // These are null in a backend that has no such kernel. An op that needs one is reported by its
  // name when a program is bound to that backend.
  //
  // Backend::multiplies() gives the formats of the weights.
  void (*gemm_quantised)(Stream&, const GemmQuantisedArgs&) = nullptr;
  // For products that norm_gemm_takes() accepts: those for which fusing the norm is faster.
  void (*norm_gemm)(Stream&, const NormGemmArgs&) = nullptr;
  bool (*norm_gemm_takes)(Stream&, int64_t rows, int64_t width, int64_t columns, DType) = nullptr;
  // gemm and norm_bwd that also sum the columns of their first output, which is the gradient of a
  // bias, by one kernel or by two. Null: the op runs column_sum itself.
  void (*gemm_sums)(Stream&, const GemmArgs&, const ColumnSumArgs&) = nullptr;
  void (*norm_bwd_sums)(Stream&, const NormBwdArgs&, const ColumnSumArgs&) = nullptr;
  // Returns false, and does nothing, where two kernels are as fast or faster.
  bool (*gemm_glu)(Stream&, const GemmGluArgs&) = nullptr;
  void (*quantise_fp8)(Stream&, const QuantiseFp8Args&) = nullptr;
  void (*advance_fp8)(Stream&, const AdvanceFp8Args&) = nullptr;
  // Null where the host draws initial values.
  void (*draw)(Stream&, const DrawArgs&) = nullptr;
  // Null where the host samples as fast.
  void (*sample)(Stream&, const SampleArgs&) = nullptr;

  HEARTH_KERNELS(HEARTH_KERNEL_POINTER)
};

}  // namespace hearth::inline core
