// The kernels of one instruction set, gathered into its table by table.cpp. What each computes is
// documented in core/kernel_args.h.
#pragma once

#include "core/kernels.h"
#include "cpu/fp8.h"

namespace hearth::HEARTH_ISA {

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

void qk_norm_rope(Stream&, const QkNormRopeArgs&);
void qk_norm_rope_bwd(Stream&, const QkNormRopeBwdArgs&);

void attention(Stream&, const AttentionArgs&);
void attention_bwd(Stream&, const AttentionBwdArgs&);
void attention_cached(Stream&, const AttentionCachedArgs&);

void activation(Stream&, const ActivationArgs&);
void activation_bwd(Stream&, const ActivationBwdArgs&);
void output_gate(Stream&, const OutputGateArgs&);
void output_gate_bwd(Stream&, const OutputGateBwdArgs&);
void dropout(Stream&, const DropoutArgs&);
void add(Stream&, const AddArgs&);
void mix(Stream&, const MixArgs&);
void mix_bwd(Stream&, const MixBwdArgs&);
void copy(Stream&, const CopyArgs&);
void draw(Stream&, const DrawArgs&);

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

}  // namespace hearth::HEARTH_ISA
