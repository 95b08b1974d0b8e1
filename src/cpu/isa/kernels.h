// The kernels of one instruction set, gathered into its table by table.cpp. What each computes is
// said in core/kernels.h.
#pragma once

#include "core/kernels.h"

namespace hearth::HEARTH_ISA {

void gemm(Stream&, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
          const GemmSpec&);
void gemm_quantised(Stream&, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
                    const GemmSpec&);
void column_sum(Stream&, Tensor out, Tensor parts, Tensor x, float alpha, bool add);

void embed(Stream&, Tensor y, Tensor ids, Tensor w, Tensor positions, Tensor pos_w);
void embed_bwd(Stream&, Tensor dw, Tensor dpos_w, Tensor dy, Tensor ids, Tensor positions,
               const EmbedSpec&);
void scatter_rows(Stream&, Tensor dx, Tensor dy, Tensor ids, Tensor prior);

void norm(Stream&, Tensor y, Tensor sum, Tensor stat, Tensor x, Tensor r, Tensor gain, Tensor bias,
          const NormSpec&);
void norm_bwd(Stream&, Tensor dx, Tensor dgain, Tensor dbias, Tensor parts, Tensor dy, Tensor x,
              Tensor gain, Tensor stat, Tensor prior, const NormSpec&);

void qk_norm_rope(Stream&, Tensor y, Tensor stat, Tensor qkv, Tensor positions, Tensor rope,
                  Tensor q_gain, Tensor k_gain, const QkSpec&);
void qk_norm_rope_bwd(Stream&, Tensor dqkv, Tensor dq_gain, Tensor dk_gain, Tensor parts, Tensor dy,
                      Tensor qkv, Tensor stat, Tensor positions, Tensor rope, Tensor q_gain,
                      Tensor k_gain, const QkSpec&);

void attention(Stream&, const AttentionArgs&);
void attention_bwd(Stream&, const AttentionBwdArgs&);
void attention_cached(Stream&, const AttentionCachedArgs&);

void activation(Stream&, Tensor y, Tensor x, Act);
void activation_bwd(Stream&, Tensor dx, Tensor dy, Tensor x, Act);
void output_gate(Stream&, Tensor y, Tensor x, Tensor g);
void output_gate_bwd(Stream&, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g);
void dropout(Stream&, Tensor y, Tensor x, Tensor scalars, float p, uint32_t salt);
void add(Stream&, Tensor y, Tensor a, Tensor b, float scale);
void copy(Stream&, Tensor y, Tensor x);

void cross_entropy(Stream&, const CrossEntropyArgs&);
void logprob(Stream&, const LogprobArgs&);
void logprob_bwd(Stream&, const LogprobBwdArgs&);
void mean_loss(Stream&, const MeanLossArgs&);

void sum_squares(Stream&, Tensor out, Tensor parts, Tensor x);
void gate_update(Stream&, Tensor state, Tensor squares, Tensor loss, Tensor scalars);
void update_weights(Stream&, const UpdateArgs&, const RuleSpec&);

}  // namespace hearth::HEARTH_ISA
