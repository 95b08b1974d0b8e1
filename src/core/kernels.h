// Kernels: the whole contract between the core and a backend. One table per backend (and per CPU
// ISA), filled by designated initialisers. A null entry means "unsupported here" and is reported
// with the op's name when a program is bound to the backend.
//
// Conventions: outputs first, then inputs, then a spec. A Tensor without data is absent. All floats
// of one call share a dtype (f32, bf16; f64 in the reference) except where marked `acc`: f32, or
// f64 when the others are f64. `prior` is what an output adds to; it may be the output itself.
#pragma once

#include "core/math.h"
#include "core/tensor.h"
#include "core/update_rules.h"

namespace hearth {

// What a backend launches on: each derives its own (a thread pool, a CUDA stream) and casts back.
struct Stream {};

struct GemmSpec {
  bool ta = false;
  bool tb = false;
  float alpha = 1;
  Act act = Act::none;  // never a GLU
  // false: c = alpha * act(op(a) op(b) + bias) + prior, aux receives the argument of act.
  // true:  c = alpha * (op(a) op(b)) * act'(aux) + prior, aux is an input; no bias.
  // act is applied to its argument rounded to the dtype of c, stored or not: act(aux) can be made
  // again to the bit, and evaluation sees what training saw.
  bool act_slope = false;
  // b is a parameter: no kernel writes it, so a product may read it before those ahead have ended.
  bool weight = false;
};

struct EmbedSpec {
  bool add = false;      // dw adds to what is there
  bool add_pos = false;  // same for the position table
};

enum class Norm : uint8_t { layer, rms };

struct NormSpec {
  Norm kind = Norm::rms;
  float eps = 1e-6f;
  bool add = false;  // backward: dgain and dbias add to what is there
};

// Column sums over rows are made in this many fixed parts, then added in order: the same bits at
// any thread count. The scratch for them is (row_parts, columns) acc.
constexpr int64_t row_parts = 32;

enum class QkNorm : uint8_t { none, before_rope, after_rope };

struct QkSpec {
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  int64_t rotary = 0;        // leading dims of a head that turn; 0: no rope
  bool interleaved = false;  // pairs (2i, 2i+1) rather than (i, i + rotary/2)
  bool reverse = false;      // turn by minus the angle: y1 = x1 c + x2 s, y2 = x2 c - x1 s
  QkNorm norm = QkNorm::none;
  float eps = 1e-6f;
  bool add = false;  // backward: gain gradients add to what is there
};

struct AttnSpec {
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  int64_t window = 0;  // key j is seen by query i iff 0 <= i - j < window; 0: no limit
  float scale = 1;
  float softcap = 0;  // s = softcap * tanh(s / softcap); 0: off
  float dropout = 0;  // of the probabilities; element ((b * heads + h) * T + i) * T + j
  uint32_t salt = 0;
  bool apart = false;  // of attention_cached: row n is of sequence n
};

constexpr int64_t cache_block = 64;  // tokens in a block of a paged cache

struct LossSpec {
  int64_t vocab = 0;  // columns that count; the logits after them become 0 with grad. 0: all
  float softcap = 0;
  bool grad = false;  // overwrite the logits with d loss / d logits
};

struct LogprobSpec {
  int64_t vocab = 0;  // columns that count; 0: all
  float softcap = 0;
  float temperature = 1;  // divides the logits, after the softcap
};

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

// How the next token of a row is drawn on the device; a row that wants more is drawn by the host.
struct SampleControls {
  float temperature = 0;  // 0: the likeliest, the lowest id of equals
  float min_p = 0, top_p = 1;
  int32_t top_k = 0;
  uint32_t uniform_low = 0, uniform_high = 0;  // of a number in [0, 1), as a share of 2^64
  int32_t as_trained = 0;  // 1: log-probabilities are the logprob kernel's, at the temperature
};
struct Drawn {
  int32_t token = 0;
  float logprob = 0;  // of the model, before the other controls
  int32_t likeliest = 0;
  float likeliest_logprob = 0;
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

  // Causal attention over packed qkv (B, T, H + 2G, D); y (B, T, H, D); lse (B, H, T) acc.
  // slopes (H) f32: ALiBi adds -slope * (i - j) after the softcap. documents (B, T) i32: i sees j
  // only if they are equal. Memory O(T).
  void (*attention)(Stream&, Tensor y, Tensor lse, Tensor qkv, Tensor slopes, Tensor documents,
                    Tensor scalars, const AttnSpec&);
  // delta (B, H, T) acc is scratch
  void (*attention_bwd)(Stream&, Tensor dqkv, Tensor delta, Tensor dy, Tensor y, Tensor lse,
                        Tensor qkv, Tensor slopes, Tensor documents, Tensor scalars,
                        const AttnSpec&);
  // Decode and prefill over a paged cache (blocks, 2G, cache_block, D), the heads of k before those
  // of v; or, of bytes, (blocks, 2G, cache_block, D + 1), where each is kept in fp8 (core/fp8.h)
  // and every query, that of its own token too, sees it as kept. qkv (1, N, H + 2G, D) holds tokens
  // of any sequences, those of one side by side: row n is at positions[n] of the sequence whose
  // keys [64 i, 64 i + 64) lie in block tables[sequences[n], i]. Stores k, v of every row, then
  // each query sees the keys of its sequence up to its own. A negative position is padding: y = 0,
  // nothing stored. Blocks that no query's window reaches are not touched. Unless in fp8, gives the
  // bits of `attention` for the same tokens.
  void (*attention_cached)(Stream&, Tensor y, Tensor cache, Tensor qkv, Tensor positions,
                           Tensor sequences, Tensor tables, Tensor slopes, const AttnSpec&);

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

  // nll (N) acc = logsumexp - logit of the target, 0 where the target is -100. With grad, logits
  // (N, V) become (softmax - onehot) * inv_targets * loss_scale, 0 in masked rows.
  void (*cross_entropy)(Stream&, Tensor nll, Tensor logits, Tensor targets, Tensor scalars,
                        const LossSpec&);
  // logprob (N) acc = log softmax(logits)[target], and the entropy (N) acc of that softmax, which
  // may be absent; 0 where the target is negative. logits (N, wide) acc, as the spec cuts and
  // scales them. At temperature 1 the bits of -nll of cross_entropy.
  void (*logprob)(Stream&, Tensor logprob, Tensor entropy, Tensor logits, Tensor targets,
                  const LogprobSpec&);
  // dlogits (N, wide) of any float = dlogprob (N) acc times the slope of logprob; 0 past the
  // vocabulary and in rows whose target is negative. It may be logits' memory.
  void (*logprob_bwd)(Stream&, Tensor dlogits, Tensor dlogprob, Tensor logits, Tensor targets,
                      const LogprobSpec&);
  // loss (1) acc = [loss +] inv_targets * sum of nll, added in a fixed order
  void (*mean_loss)(Stream&, Tensor loss, Tensor nll, Tensor scalars, bool add);

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
