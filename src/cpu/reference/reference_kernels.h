// What the reference kernels share: tensors as vectors of double, and the kernels' declarations.
// Each kernel loads all inputs before it stores anything, so an output may be any input's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels.h"
#include "cpu/fp8.h"

namespace hearth::reference {

using Doubles = std::vector<double>;

Doubles load(Tensor);                // empty if the tensor is absent
void store(Tensor, const Doubles&);  // rounds to the tensor's dtype; does nothing if it is absent
double as_stored(double, Tensor);    // rounded to the tensor's dtype, if there is a tensor
std::vector<int32_t> load_ints(Tensor);  // empty if the tensor is absent
Scalars load_scalars(Tensor);            // all defaults if the tensor is absent

// The initial value of an output: its old contents if it adds to them, else zeros.
inline Doubles start_from(Tensor t, bool add) {
  return t && add ? load(t) : Doubles(t ? size_t(t.numel()) : 0);
}

inline double value_or(const Doubles& x, int64_t i, double otherwise) {
  return x.empty() ? otherwise : x[size_t(i)];
}

// 1 / (1 - p) if dropout keeps element i, else 0.
double keep_factor(const Scalars&, float p, uint32_t salt, int64_t i);

// reference_rows.cpp: products and rows
void gemm(Stream&, const GemmArgs&);
void gemm_quantised(Stream&, const GemmQuantisedArgs&);
void column_sum(Stream&, const ColumnSumArgs&);
void quantise_fp8(Stream&, const QuantiseFp8Args&);
void embed(Stream&, const EmbedArgs&);
void embed_bwd(Stream&, const EmbedBwdArgs&);
void scatter_rows(Stream&, const ScatterRowsArgs&);
void previous_tokens(Stream&, const PreviousTokensArgs&);
void norm(Stream&, const NormArgs&);
void norm_bwd(Stream&, const NormBwdArgs&);

// reference_attention.cpp: heads
void qk_norm_rope(Stream&, const QkNormRopeArgs&);
void qk_norm_rope_bwd(Stream&, const QkNormRopeBwdArgs&);
void attention(Stream&, const AttentionArgs&);
void attention_bwd(Stream&, const AttentionBwdArgs&);
void attention_cached(Stream&, const AttentionCachedArgs&);

// reference_elements.cpp: element by element
void activation(Stream&, const ActivationArgs&);
void activation_bwd(Stream&, const ActivationBwdArgs&);
void output_gate(Stream&, const OutputGateArgs&);
void output_gate_bwd(Stream&, const OutputGateBwdArgs&);
void dropout(Stream&, const DropoutArgs&);
void add(Stream&, const AddArgs&);
void mix(Stream&, const MixArgs&);
void mix_bwd(Stream&, const MixBwdArgs&);
void copy(Stream&, const CopyArgs&);

// reference_update.cpp: from logits to new weights
void cross_entropy(Stream&, const CrossEntropyArgs&);
void logprob(Stream&, const LogprobArgs&);
void logprob_bwd(Stream&, const LogprobBwdArgs&);
void mean_loss(Stream&, const MeanLossArgs&);
void sum_squares(Stream&, const SumSquaresArgs&);
void gate_update(Stream&, const GateUpdateArgs&);
void update_weights(Stream&, const UpdateArgs&);
void unit_matrix(Stream&, const UnitMatrixArgs&);
void neuron_factors(Stream&, const NeuronFactorsArgs&);

constexpr Fp8Parts fp8_parts{gemm, activation, activation_bwd, norm, norm_bwd, cross_entropy};

}  // namespace hearth::reference
