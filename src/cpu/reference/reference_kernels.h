// What the reference kernels share: tensors as whole vectors of double, and their declarations.
// Each kernel loads all its inputs before it stores anything, so any output may be any input's
// memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels.h"

namespace hearth::reference {

using Doubles = std::vector<double>;

Doubles load(Tensor);                    // empty when the tensor is absent
void store(Tensor, const Doubles&);      // rounds to the tensor's dtype; nothing when it is absent
double as_stored(double, Tensor);        // rounded to the tensor's dtype, if there is one
std::vector<int32_t> load_ints(Tensor);  // empty when the tensor is absent
Scalars load_scalars(Tensor);            // all defaults when the tensor is absent

// What an output starts from: its old values when it adds to them, else zeros.
inline Doubles start_from(Tensor t, bool add) {
  return t && add ? load(t) : Doubles(t ? size_t(t.numel()) : 0);
}

inline double value_or(const Doubles& x, int64_t i, double otherwise) {
  return x.empty() ? otherwise : x[size_t(i)];
}

// 1 / (1 - p) where element i of a dropout survives, else 0.
double keep_factor(const Scalars&, float p, uint32_t salt, int64_t i);

// reference_rows.cpp: products and rows
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

// reference_attention.cpp: heads
void qk_norm_rope(Stream&, Tensor y, Tensor stat, Tensor qkv, Tensor positions, Tensor rope,
                  Tensor q_gain, Tensor k_gain, const QkSpec&);
void qk_norm_rope_bwd(Stream&, Tensor dqkv, Tensor dq_gain, Tensor dk_gain, Tensor parts, Tensor dy,
                      Tensor qkv, Tensor stat, Tensor positions, Tensor rope, Tensor q_gain,
                      Tensor k_gain, const QkSpec&);
void attention(Stream&, const AttentionArgs&);
void attention_bwd(Stream&, const AttentionBwdArgs&);
void attention_cached(Stream&, const AttentionCachedArgs&);

// reference_elements.cpp: element by element
void activation(Stream&, Tensor y, Tensor x, Act);
void activation_bwd(Stream&, Tensor dx, Tensor dy, Tensor x, Act);
void output_gate(Stream&, Tensor y, Tensor x, Tensor g);
void output_gate_bwd(Stream&, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g);
void dropout(Stream&, Tensor y, Tensor x, Tensor scalars, float p, uint32_t salt);
void add(Stream&, Tensor y, Tensor a, Tensor b, float scale);
void copy(Stream&, Tensor y, Tensor x);

// reference_update.cpp: from logits to new weights
void cross_entropy(Stream&, const CrossEntropyArgs&);
void logprob(Stream&, const LogprobArgs&);
void logprob_bwd(Stream&, const LogprobBwdArgs&);
void mean_loss(Stream&, const MeanLossArgs&);
void sum_squares(Stream&, Tensor out, Tensor parts, Tensor x);
void gate_update(Stream&, Tensor state, Tensor squares, Tensor loss, Tensor scalars);
void update_weights(Stream&, const UpdateArgs&, const RuleSpec&);

}  // namespace hearth::reference
