// The CUDA kernels of the table in core/kernels.h that are neither products nor attention. Same
// signatures, same meaning; f32, bf16 and f16, with f32 as acc. Each gives the same bits in every
// run on one card, and may be captured into a graph.
#pragma once

#include "core/kernels.h"

namespace hearth::cuda {

// reduce.cu
void column_sum(Stream&, Tensor out, Tensor parts, Tensor x, float alpha, bool add);
void sum_squares(Stream&, Tensor out, Tensor parts, Tensor x);

// embed.cu, embed_bwd.cu, scatter.cu
void embed(Stream&, Tensor y, Tensor ids, Tensor w, Tensor positions, Tensor pos_w);
void embed_bwd(Stream&, Tensor dw, Tensor dpos_w, Tensor dy, Tensor ids, Tensor positions,
               const EmbedSpec&);
void scatter_rows(Stream&, Tensor dx, Tensor dy, Tensor ids, Tensor prior);

// norm.cu, norm_bwd.cu
void norm(Stream&, Tensor y, Tensor sum, Tensor stat, Tensor x, Tensor r, Tensor gain, Tensor bias,
          const NormSpec&);
void norm_bwd(Stream&, Tensor dx, Tensor dgain, Tensor dbias, Tensor parts, Tensor dy, Tensor x,
              Tensor gain, Tensor stat, Tensor prior, const NormSpec&);

// qk_norm_rope.cu, qk_norm_rope_bwd.cu
void qk_norm_rope(Stream&, Tensor y, Tensor stat, Tensor qkv, Tensor positions, Tensor rope,
                  Tensor q_gain, Tensor k_gain, const QkSpec&);
void qk_norm_rope_bwd(Stream&, Tensor dqkv, Tensor dq_gain, Tensor dk_gain, Tensor parts, Tensor dy,
                      Tensor qkv, Tensor stat, Tensor positions, Tensor rope, Tensor q_gain,
                      Tensor k_gain, const QkSpec&);

// activation.cu, gate.cu, pointwise.cu
void activation(Stream&, Tensor y, Tensor x, Act);
void activation_bwd(Stream&, Tensor dx, Tensor dy, Tensor x, Act);
void output_gate(Stream&, Tensor y, Tensor x, Tensor g);
void output_gate_bwd(Stream&, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g);
void dropout(Stream&, Tensor y, Tensor x, Tensor scalars, float p, uint32_t salt);
void add(Stream&, Tensor y, Tensor a, Tensor b, float scale);
void copy(Stream&, Tensor y, Tensor x);

// sample.cu
void sample(Stream&, Tensor drawn, Tensor tokens, Tensor logits, Tensor controls, int64_t drawable,
            int64_t vocab);

// logprob.cu
void logprob(Stream&, const LogprobArgs&);
void logprob_bwd(Stream&, const LogprobBwdArgs&);

// loss.cu, update.cu
void cross_entropy(Stream&, const CrossEntropyArgs&);
void mean_loss(Stream&, const MeanLossArgs&);
void gate_update(Stream&, Tensor state, Tensor squares, Tensor loss, Tensor scalars);
void update_weights(Stream&, const UpdateArgs&, const RuleSpec&);

}  // namespace hearth::cuda
