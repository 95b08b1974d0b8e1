// The CUDA kernels of the table in core/kernels.h, except products and attention. Arguments are
// documented in core/kernel_args.h. Tensors are f32, bf16 or f16; accumulation is in f32. Each
// kernel gives the same bits in every run on one GPU and can be captured into a graph.
#pragma once

#include "core/kernels.h"

namespace hearth::cuda {

// reduce.cu
void column_sum(Stream&, const ColumnSumArgs&);
void sum_squares(Stream&, const SumSquaresArgs&);

// embed.cu, embed_bwd.cu, scatter.cu, previous.cu
void embed(Stream&, const EmbedArgs&);
void embed_bwd(Stream&, const EmbedBwdArgs&);
void scatter_rows(Stream&, const ScatterRowsArgs&);
void previous_tokens(Stream&, const PreviousTokensArgs&);

// norm.cu, norm_bwd.cu
void norm(Stream&, const NormArgs&);
void norm_bwd(Stream&, const NormBwdArgs&);

// qk_norm_rope.cu, qk_norm_rope_bwd.cu
void qk_norm_rope(Stream&, const QkNormRopeArgs&);
void qk_norm_rope_bwd(Stream&, const QkNormRopeBwdArgs&);

// quantise_fp8.cu
void quantise_fp8(Stream&, const QuantiseFp8Args&);
void advance_fp8(Stream&, const AdvanceFp8Args&);

// activation.cu, gate.cu, mix.cu, pointwise.cu
void activation(Stream&, const ActivationArgs&);
void activation_bwd(Stream&, const ActivationBwdArgs&);
void output_gate(Stream&, const OutputGateArgs&);
void output_gate_bwd(Stream&, const OutputGateBwdArgs&);
void dropout(Stream&, const DropoutArgs&);
void add(Stream&, const AddArgs&);
void mix(Stream&, const MixArgs&);
void mix_bwd(Stream&, const MixBwdArgs&);
void copy(Stream&, const CopyArgs&);

// draw.cu
void draw(Stream&, const DrawArgs&);

// sample.cu
void sample(Stream&, const SampleArgs&);

// logprob.cu
void logprob(Stream&, const LogprobArgs&);
void logprob_bwd(Stream&, const LogprobBwdArgs&);

// loss.cu, update.cu
void cross_entropy(Stream&, const CrossEntropyArgs&);
void mean_loss(Stream&, const MeanLossArgs&);
void gate_update(Stream&, const GateUpdateArgs&);
void update_weights(Stream&, const UpdateArgs&);

// muon.cu
void unit_matrix(Stream&, const UnitMatrixArgs&);
void neuron_factors(Stream&, const NeuronFactorsArgs&);

}  // namespace hearth::cuda
