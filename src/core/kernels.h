// Kernels: the whole contract between the core and a backend. One table per backend (and per CPU
// ISA), filled by designated initialisers. A null entry means "unsupported here" and is reported
// with the op's name when a program is bound to the backend. What an entry computes, and the shapes
// of its tensors, are documented at its argument struct in core/kernel_args.h.
#pragma once

#include "core/kernel_args.h"

namespace hearth {

// What a backend launches on: each derives its own (a thread pool, a CUDA stream) and casts back.
struct Stream {};

// One flat range of parameters, with what its optimizer keeps. All tensors have n elements but the
// last two.
struct UpdateArgs {
  Tensor weight;             // any float
  Tensor master;             // acc; absent: the weight is its own master
  Tensor slots[most_slots];  // optimizer state, as many as the rule has; each acc or bf16
  Tensor grad;               // acc
  Tensor gate;               // UpdateState, as gate_update left it
  Tensor scalars;            // Scalars
};

struct Kernels {
  const char* name;

  // c (M, N); op(a) (M, K); op(b) (K, N); bias (N); prior, aux (M, N). c may be acc with a, b bf16.
  void (*gemm)(Stream&, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
               const GemmSpec&);
  // The same with a = norm(x) * gain + shift; either that is rounded as norm rounds it, or b times
  // gain is. b is a weight (tb), plain or as gemm_quantised takes it, and nothing is kept of the
  // norm. Where it pays, and may be absent.
  void (*norm_gemm)(Stream&, Tensor c, Tensor x, Tensor gain, Tensor shift, Tensor b, Tensor bias,
                    Tensor prior, const NormSpec&, const GemmSpec&) = nullptr;
  bool (*norm_gemm_takes)(Stream&, int64_t rows, int64_t width, int64_t columns, DType) = nullptr;
  // out (N) acc = [out +] alpha * column sums of x (M, N); parts (row_parts, N) acc
  void (*column_sum)(Stream&, Tensor out, Tensor parts, Tensor x, float alpha, bool add);

  // y (B, T, C) = w[ids] + pos_w[positions]; ids, positions (B, T) i32; pos_w may be absent.
  // A negative position (padding) reads row 0, here and in qk_norm_rope; a negative id gives zeros.
  void (*embed)(Stream&, Tensor y, Tensor ids, Tensor w, Tensor positions, Tensor pos_w);
  // dw (V, C) acc, dpos_w (S, C) acc; without `add` they are overwritten whole
  void (*embed_bwd)(Stream&, Tensor dw, Tensor dpos_w, Tensor dy, Tensor ids, Tensor positions,
                    const EmbedSpec&);

  // dx (N, C) = prior, or 0 where it is absent; then dx[ids[r]] += dy[r]. No two ids are the same,
  // but for negative ones, whose rows of dy are left out. dx may be prior's memory.
  void (*scatter_rows)(Stream&, Tensor dx, Tensor dy, Tensor ids, Tensor prior);

  // sum = x + r (written when r is given); y = norm(sum) * gain + bias, over the last dim.
  // stat (rows, 2) acc: mean (0 for rms), 1 / deviation. gain, bias may be absent.
  void (*norm)(Stream&, Tensor y, Tensor sum, Tensor stat, Tensor x, Tensor r, Tensor gain,
               Tensor bias, const NormSpec&);
  // dx = prior + d norm; x is what was normalised. dgain, dbias (C) acc; parts (2 * row_parts, C)
  // acc
  void (*norm_bwd)(Stream&, Tensor dx, Tensor dgain, Tensor dbias, Tensor parts, Tensor dy,
                   Tensor x, Tensor gain, Tensor stat, Tensor prior, const NormSpec&);

  // y, qkv (B, T, H + 2G, D) packed q | k | v. RMS norm over each head of q and k, and rotation of
  // its leading dims by the row positions[b, t] of rope (S, rotary / 2, 2): cos, sin (f32). v is
  // copied. stat (B * T, H + G) acc: 1 / rms. y may be qkv's memory. gains (D), may be absent.
  void (*qk_norm_rope)(Stream&, Tensor y, Tensor stat, Tensor qkv, Tensor positions, Tensor rope,
                       Tensor q_gain, Tensor k_gain, const QkSpec&);
  // parts (2 * row_parts, D) acc; dqkv may be dy's memory. Without a norm, qkv and stat are absent.
  void (*qk_norm_rope_bwd)(Stream&, Tensor dqkv, Tensor dq_gain, Tensor dk_gain, Tensor parts,
                           Tensor dy, Tensor qkv, Tensor stat, Tensor positions, Tensor rope,
                           Tensor q_gain, Tensor k_gain, const QkSpec&);

  void (*attention)(Stream&, const AttentionArgs&);
  void (*attention_bwd)(Stream&, const AttentionBwdArgs&);
  void (*attention_cached)(Stream&, const AttentionCachedArgs&);

  // y (.., N) = act(x); a GLU reads x (.., 2N)
  void (*activation)(Stream&, Tensor y, Tensor x, Act);
  void (*activation_bwd)(Stream&, Tensor dx, Tensor dy, Tensor x, Act);
  // y = x * sigmoid(g); x (B, T, H, D); g (B, T, H, D) or (B, T, H)
  void (*output_gate)(Stream&, Tensor y, Tensor x, Tensor g);
  void (*output_gate_bwd)(Stream&, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g);
  // y = x / (1 - p) where the element is kept, else 0. Its own backward.
  void (*dropout)(Stream&, Tensor y, Tensor x, Tensor scalars, float p, uint32_t salt);
  // y = a + scale * b; a absent: scale * b
  void (*add)(Stream&, Tensor y, Tensor a, Tensor b, float scale);
  // y = x with conversion between float dtypes
  void (*copy)(Stream&, Tensor y, Tensor x);

  // drawn (N) of Drawn; logits (N, wide) acc, of which `vocab` columns count and the first
  // `drawable` may be drawn; controls (N) of SampleControls. Log-probabilities are over those that
  // may be drawn, those as_trained over all that count. A draw depends on its row alone. tokens (N)
  // i32, which may be absent, are what was drawn, for a step that is launched before the host
  // knows. Absent where the host draws as fast.
  void (*sample)(Stream&, Tensor drawn, Tensor tokens, Tensor logits, Tensor controls,
                 int64_t drawable, int64_t vocab) = nullptr;

  void (*cross_entropy)(Stream&, const CrossEntropyArgs&);
  void (*mean_loss)(Stream&, const MeanLossArgs&);
  void (*logprob)(Stream&, const LogprobArgs&);
  void (*logprob_bwd)(Stream&, const LogprobBwdArgs&);

  // out (1) acc = sum of squares of x, in fixed parts
  void (*sum_squares)(Stream&, Tensor out, Tensor parts, Tensor x);
  // Reads |g|^2 and the loss, decides clipping or skipping: fills UpdateState
  void (*gate_update)(Stream&, Tensor state, Tensor squares, Tensor loss, Tensor scalars);
  // One pass of an elementwise optimizer over a flat range: new weights and new state, rounded to
  // nearest even where they are stored in fewer bits. Changes nothing where the gate says skip.
  void (*update_weights)(Stream&, const UpdateArgs&, const RuleSpec&);

  // gemm with tb, without aux and act_slope, and with weights that quantise() of core/quantised.h
  // made, bytes of dtype panels_of(format): c (M, N) = alpha * act(round(a) w^T + bias) + prior.
  // round() of a CPU takes each row of a (M, K) to whole multiples of its largest element / 127; a
  // card takes a as it is. Rows of w beyond N are not read. Absent where only plain weights are
  // multiplied; Backend::multiplies() says which formats are.
  void (*gemm_quantised)(Stream&, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
                         const GemmSpec&) = nullptr;
};

}  // namespace hearth
