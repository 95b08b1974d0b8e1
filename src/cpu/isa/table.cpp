// The table of this instruction set's kernels.
#include "cpu/fp8.h"
#include "cpu/isa/kernels.h"

#define HEARTH_NAME_OF(isa) #isa
#define HEARTH_NAME(isa) HEARTH_NAME_OF(isa)

namespace hearth::HEARTH_ISA {

extern const Kernels kernels;

const Kernels kernels = {
    .name = "cpu " HEARTH_NAME(HEARTH_ISA),
    .gemm = gemm,
    .gemm_quantised = gemm_quantised,
    .column_sum = column_sum,
    .quantise_fp8 = quantise_fp8,
    .advance_fp8 = hearth::advance_fp8,
    .embed = embed,
    .embed_bwd = embed_bwd,
    .scatter_rows = scatter_rows,
    .previous_tokens = previous_tokens,
    .norm = norm,
    .norm_bwd = norm_bwd,
    .qk_norm_rope = qk_norm_rope,
    .qk_norm_rope_bwd = qk_norm_rope_bwd,
    .attention = attention,
    .attention_bwd = attention_bwd,
    .attention_cached = attention_cached,
    .activation = activation,
    .activation_bwd = activation_bwd,
    .output_gate = output_gate,
    .output_gate_bwd = output_gate_bwd,
    .dropout = dropout,
    .add = add,
    .mix = mix,
    .mix_bwd = mix_bwd,
    .copy = copy,
    .draw = draw,
    .cross_entropy = cross_entropy,
    .mean_loss = mean_loss,
    .logprob = logprob,
    .logprob_bwd = logprob_bwd,
    .sum_squares = sum_squares,
    .gate_update = gate_update,
    .update_weights = update_weights,
    .unit_matrix = unit_matrix,
    .neuron_factors = neuron_factors,
};

}  // namespace hearth::HEARTH_ISA
