// The arguments of every entry of the table of kernels (core/kernels.h): one struct per entry, with
// one named field per tensor, used by every backend.
//
// Conventions. Outputs come first, then inputs, then the spec. A field with a default may be left
// out: a Tensor without data is absent. A field without a default must be given; the compiler warns
// where an initialiser leaves it out. All floats of one call share a dtype (f32, bf16, f16; f64 in
// the reference) except where marked `acc`: f32, or f64 when the others are f64. `prior` is added
// to the output; it may be the output's own memory. `parts` is scratch for sums in fixed parts.
#pragma once

#include "core/draw.h"
#include "core/kernel_specs.h"
#include "core/mla_args.h"
#include "core/moe_args.h"
#include "core/tensor.h"
#include "core/update_args.h"

namespace hearth::inline core {

// --- products ---

// c = alpha * act(op(a) op(b) + bias) + beta * prior; GemmSpec has the details. With a batch every
// matrix has a leading dimension more. a and b may be fp8 (e4m3 or e5m2, not both e5m2) with a
// scale each: an element is its code times that scale. Then c is bf16 or f32, bias is bf16, the
// spec has tb without ta and no batch, and K and N are multiples of 16. With a bias both scales are
// powers of two.
struct GemmArgs {
  Tensor c;           // (M, N); may be acc where a and b are bf16
  Tensor aux = {};    // (M, N): receives the argument of act; an input with act_slope
  Tensor a;           // op(a) is (M, K)
  Tensor b;           // op(b) is (K, N)
  Tensor bias = {};   // (N)
  Tensor prior = {};  // (M, N)
  // fp8 only: an Fp8Site (core/fp8.h), whose first float is the scale.
  Tensor a_scale = {}, b_scale = {};
  GemmSpec spec = {};
};

// A product and the GLU that reads it: pre = a bᵀ, c = act(gate) * up, where pre = (gate, up). With
// `slope` the gradient of both: d = alpha * a b, c = (d * up * act'(gate), d * act(gate)).
struct GemmGluArgs {
  Tensor c;         // (M, N); slope: (M, 2N)
  Tensor pre = {};  // (M, 2N): receives the product, if it is needed; slope: an input
  Tensor a;         // (M, K)
  Tensor b;         // (2N, K); slope: (K, N)
  Act act = Act::swiglu;
  bool slope = false;
  float alpha = 1;  // 1 without slope
};

// A gemm with a = norm(x) * gain + shift. The kernel rounds either norm(x) * gain, as the norm
// kernel does, or b * gain. It does not store the norm.
struct NormGemmArgs {
  Tensor c;           // (M, N)
  Tensor x;           // (M, K)
  Tensor gain = {};   // (K)
  Tensor shift = {};  // (K)
  Tensor b;           // (N, K), a weight: plain, or packed as gemm_quantised takes it
  Tensor bias = {};   // (N)
  Tensor prior = {};  // (M, N)
  NormSpec norm = {};
  GemmSpec gemm = {};
};

// c = alpha * act(round(a) w^T + bias) + prior, with weights packed by quantise() of
// core/quantised.h. On a CPU, round() turns each row of a into whole multiples of its largest
// element / 127; a GPU uses a as it is.
struct GemmQuantisedArgs {
  Tensor c;            // (M, N)
  Tensor a;            // (M, K)
  Tensor w;            // bytes of dtype panels_of(format); rows beyond N are not read
  Tensor bias = {};    // (N)
  Tensor prior = {};   // (M, N)
  GemmSpec spec = {};  // with tb, without act_slope
};

// A value v of R rows, itself rounded to bf16, rounded to fp8: y = v / scale. quantise_fp8 writes
// it, and so do kernels that have it as their result. Finite values beyond the range of fp8 become
// the largest of its numbers; inf and NaN become NaN. The kernel chooses the scale by
// fp8_scale_bits() of core/fp8.h and records max |v| in `site`. C is a multiple of 16.
struct Fp8Output {
  Tensor y = {};     // (.., C) e4m3 or e5m2; may be absent if yt is not
  Tensor yt = {};    // (C, round_up(R, 16)), y transposed; columns from R on are 0
  Tensor sums = {};  // (ceil_div(R, fp8_sum_rows), C) f32: sums of v over that many rows each
  Tensor site = {};  // Fp8Site (core/fp8.h), updated
  // Scalars. Present: after the first steps of a run the scale comes from max |v| of the previous
  // step. Absent: always from max |v| of this step.
  Tensor scalars = {};

  [[gnu::always_inline]] explicit operator bool() const { return y || yt; }
  DType dtype() const { return y ? y.dtype : yt.dtype; }
  int64_t cols() const { return y ? y.cols() : yt.rows(); }
};

// Rounds v to fp8, where v is x, act(x) or x * act'(aux). With the slope of a GLU, C is a multiple
// of 32.
struct QuantiseFp8Args {
  Fp8Output to;
  Tensor x;         // (.., C) bf16; of a GLU (.., 2C), with its slope (.., C / 2)
  Tensor aux = {};  // (.., C) bf16: the argument of act, with act_slope
  QuantiseFp8Spec spec = {};
};

// Ends a step: every site's max |v| becomes the one that the next step scales by, unless it is 0 or
// not finite.
struct AdvanceFp8Args {
  Tensor sites;  // (n, 16) u8: n times Fp8Site
};

// out = [out +] alpha * column sums of x
struct ColumnSumArgs {
  Tensor out;    // (N) acc
  Tensor parts;  // (row_parts, N) acc
  Tensor x;      // (M, N)
  float alpha = 1;
  bool add = false;  // add to the current contents of out
};

// --- embeddings and rows ---

// y = w[ids] + pos_w[positions]. A negative position (padding) reads row 0, here and in
// qk_norm_rope; a negative id gives zeros.
struct EmbedArgs {
  Tensor y;               // (B, T, C)
  Tensor ids;             // (B, T) i32
  Tensor w;               // (V, C)
  Tensor positions = {};  // (B, T) i32; absent without pos_w
  Tensor pos_w = {};      // (S, C)
};

// Overwrites dw and dpos_w entirely, unless the spec says to add.
struct EmbedBwdArgs {
  Tensor dw = {};         // (V, C) acc
  Tensor dpos_w = {};     // (S, C) acc
  Tensor dy;              // (B, T, C)
  Tensor ids;             // (B, T) i32
  Tensor positions = {};  // (B, T) i32; absent without dpos_w
  EmbedSpec spec = {};
};

// Finds the token before each token of its sequence. A token at position 0, the first of a row, and
// padding have none. With a cache, whose layout is that of AttentionCachedArgs, the kernel first
// stores the tokens of all rows, then reads those before them.
struct PreviousTokensArgs {
  Tensor before = {};     // (B, T) i32: that token; -1: none
  Tensor row = {};        // (B, T) i32: its row of B * T, without a cache; -1: none
  Tensor bigram = {};     // (B, T) i32: bigram_bucket() of both tokens
  Tensor cache = {};      // (blocks, cache_block) i32
  Tensor tokens;          // (B, T) i32
  Tensor positions;       // (B, T) i32; negative: padding
  Tensor sequences = {};  // (1, N) i32, with a cache
  Tensor tables = {};     // (sequences, blocks of each) i32, with a cache
  int64_t buckets = 0;    // rows of the table that bigram indexes
};

// y[b, i] = x[b, i + by], or no_token where that is not in the row or not `by` positions later in
// the same sequence.
struct FurtherTokensArgs {
  Tensor y;          // (B, T) i32
  Tensor x;          // (B, T) i32
  Tensor positions;  // (B, T) i32
  int64_t by = 1;
};
constexpr int32_t no_token = -100;  // also the target of tokens without a loss

// dx = prior, or 0 if it is absent; then dx[ids[r]] += dy[r]. Ids must be distinct, except for
// negative ones, whose rows of dy are ignored.
struct ScatterRowsArgs {
  Tensor dx;          // (N, C)
  Tensor dy;          // (R, C)
  Tensor ids;         // (R) i32
  Tensor prior = {};  // (N, C); may be dx's memory
};

// --- norms ---

// sum = x + residual; y = norm(sum) * gain + bias, over the last dim.
struct NormArgs {
  Tensor y;              // (.., C); may be absent with fp8
  Tensor sum = {};       // (.., C); written when residual is given
  Tensor stat = {};      // (rows, 2) acc: mean (0 for rms), 1 / deviation
  Tensor x;              // (.., C)
  Tensor residual = {};  // (.., C)
  Tensor gain = {};      // (C)
  Tensor bias = {};      // (C)
  Fp8Output fp8 = {};    // receives y, if that is bf16
  NormSpec spec = {};
};

// dx = prior + the gradient through the norm.
struct NormBwdArgs {
  Tensor dx;           // (.., C); may be absent with fp8
  Tensor dgain = {};   // (C) acc
  Tensor dbias = {};   // (C) acc
  Tensor parts = {};   // (2 * row_parts, C) acc; absent without dgain and dbias
  Tensor dy;           // (.., C)
  Tensor x;            // (.., C): the input of the norm, which is the sum if there was a residual
  Tensor gain = {};    // (C)
  Tensor stat;         // (rows, 2) acc, of the forward pass
  Tensor prior = {};   // (.., C)
  Fp8Output fp8 = {};  // receives dx, if that is bf16
  NormSpec spec = {};
};

// RMS norm of each head of q and k, and rotation of the head's leading dims by the row positions[b,
// t] of rope. v is copied.
struct QkNormRopeArgs {
  Tensor y;               // (B, T, spec.token()); may be qkv's memory
  Tensor stat = {};       // (B * T, H + G) acc: 1 / rms
  Tensor qkv;             // (B, T, spec.token()) packed q | k | v
  Tensor positions = {};  // (B, T) i32; absent without rope
  Tensor rope = {};       // (S, rotary / 2, 2) f32: cos, sin
  Tensor q_gain = {};     // (D)
  Tensor k_gain = {};     // (D)
  QkSpec spec = {};
};

struct QkNormRopeBwdArgs {
  Tensor dqkv;            // (B, T, spec.token()); may be dy's memory; may be absent with fp8
  Tensor dq_gain = {};    // (D) acc
  Tensor dk_gain = {};    // (D) acc
  Tensor parts = {};      // (2 * row_parts, D) acc; absent without dq_gain and dk_gain
  Tensor dy;              // (B, T, spec.token())
  Tensor qkv = {};        // (B, T, spec.token()); absent without a norm
  Tensor stat = {};       // (B * T, H + G) acc, of the forward pass; absent without a norm
  Tensor positions = {};  // (B, T) i32; absent without rope
  Tensor rope = {};       // (S, rotary / 2, 2) f32: cos, sin
  Tensor q_gain = {};     // (D)
  Tensor k_gain = {};     // (D)
  Fp8Output fp8 = {};     // receives dqkv, if that is bf16
  QkSpec spec = {};
};

// Partial key offset, in place: in every head of k, the dims from `first` on become those of the
// token before. A token without one (PreviousTokensArgs says which) and padding keep their own.
// With a cache the kernel first stores these dims of all rows there, then reads those before them.
struct OffsetKeysArgs {
  Tensor y;     // (B, T, ..), tokens of k.token elements
  Tensor kept;  // (B * T, n): scratch, with n = k.heads * (k.width - first); or the cache (blocks,
                // cache_block * n), laid out like that of AttentionCachedArgs
  Tensor positions;       // (B, T) i32; negative: padding, not stored
  Tensor sequences = {};  // (1, N) i32, with a cache
  Tensor tables = {};     // (sequences, blocks of each) i32, with a cache
  HeadLayout k;
  int64_t first = 0;
  bool back = false;  // y is the gradient of the result and becomes that of the input; no cache

  // Elements of a token that are stored. Always inlined, because files compiled for several
  // instruction sets call it.
  [[gnu::always_inline]] int64_t size() const { return k.heads * (k.width - first); }
};

// --- attention ---

// Heads of q, k or v in a tensor whose leading dims are (B, T). Several views may share a tensor:
// packed qkv is three of them.
struct HeadView {
  Tensor tensor;
  HeadLayout layout;

  // Head h of token n; n counts tokens over all sequences.
  template <class T = float>
  [[gnu::always_inline]] T* at(int64_t n, int64_t h) const {
    return reinterpret_cast<T*>(tensor.data) + layout.at(n, h);
  }
};

// Causal attention in O(T) memory. H heads of q share G heads of k and v: H / G query heads per KV
// head. Heads of q and k are D wide; those of v and y may have another width V.
struct AttentionArgs {
  Tensor y;         // (B, T, H, V)
  Tensor lse = {};  // (B, H, T) acc: log of the sum of the exponentials of the scores
  HeadView q, k, v;
  Tensor slopes = {};     // (H) f32: ALiBi adds -slope * (i - j) after the softcap
  Tensor bias = {};       // (H, S) acc: adds bias[h, min(i - j, S - 1)] after the softcap
  Tensor documents = {};  // (B, T) i32: query i sees key j only if their documents are equal
  Tensor scalars = {};    // Scalars; read with dropout only
  AttnSpec spec = {};
};

struct AttentionBwdArgs {
  HeadView dq, dk, dv;  // together they cover their tensors, which may be absent with fp8
  Tensor dbias = {};    // (H, S) acc
  Tensor delta;         // (B, H, T) acc: scratch
  Tensor dy;            // (B, T, H, V)
  Tensor y;             // (B, T, H, V), of the forward pass
  Tensor lse;           // (B, H, T) acc, of the forward pass
  HeadView q, k, v;
  Tensor slopes = {};       // (H) f32
  Tensor bias = {};         // (H, S) acc
  Tensor dbias_prior = {};  // (H, S) acc: added to dbias; may be its memory
  Tensor documents = {};    // (B, T) i32
  Tensor scalars = {};      // Scalars; read with dropout only
  Fp8Output fp8 = {};       // receives dq, dk and dv, if they share one tensor of bf16
  AttnSpec spec = {};
};

// Decode and prefill over a paged cache. The rows are tokens of any number of sequences, those of
// one sequence next to each other: row n is at positions[n] of the sequence whose keys [64 i, 64 i
// + 64) lie in block tables[sequences[n], i]. The kernel stores k and v of every row; then each
// query sees the keys of its sequence up to its own. A negative position is padding: y = 0, nothing
// is stored. Blocks outside the windows of all queries are not touched. Except with an fp8 cache,
// rows have the same bits as `attention` gives for the same tokens.
struct AttentionCachedArgs {
  Tensor y;  // (1, N, H, V)
  // (blocks, ..), each block laid out by CacheLayout (core/cache_layout.h). A cache of bytes is fp8
  // (core/fp8.h): every query, even that of the same token, sees keys and values as rounded to fp8.
  Tensor cache;
  HeadView q, k, v;    // of (1, N)
  Tensor positions;    // (1, N) i32
  Tensor sequences;    // (1, N) i32
  Tensor tables;       // (sequences, blocks of each) i32
  Tensor slopes = {};  // (H) f32
  Tensor bias = {};    // (H, S) acc
  AttnSpec spec = {};
  int64_t depth = 0;  // blocks of a table that hold the rows and what they see; 0: all
};

// y[h, d] = w[buckets[d], h]: the bias of every distance, from a table with one row per bucket.
struct DistanceBiasArgs {
  Tensor y;        // (H, S) acc
  Tensor w;        // (n, H)
  Tensor buckets;  // (S) i32: a row of w for each distance
};

// dw[n, h] = the sum of dy[h, d] over the distances d of bucket n, in order.
struct DistanceBiasBwdArgs {
  Tensor dw;         // (n, H) acc
  Tensor dy;         // (H, S) acc
  Tensor buckets;    // (S) i32
  bool add = false;  // dw adds to its current contents
};

// --- elementwise ---

// y = act(x); a GLU has twice as many columns in x.
struct ActivationArgs {
  Tensor y;  // (.., N)
  Tensor x;  // (.., N), or (.., 2N) for a GLU
  Act act = Act::none;
};

struct ActivationBwdArgs {
  Tensor dx;  // shape of x
  Tensor dy;  // (.., N)
  Tensor x;   // (.., N), or (.., 2N) for a GLU
  Act act = Act::none;
};

// y = x * sigmoid(g)
struct OutputGateArgs {
  Tensor y;  // (B, T, H, D)
  Tensor x;  // (B, T, H, D)
  Tensor g;  // (B, T, H, D) or (B, T, H)
};

struct OutputGateBwdArgs {
  Tensor dx;  // (B, T, H, D)
  Tensor dg;  // shape of g
  Tensor dy;  // (B, T, H, D)
  Tensor x;   // (B, T, H, D)
  Tensor g;   // (B, T, H, D) or (B, T, H)
};

// y = x / (1 - p) where the element is kept, else 0. The backward pass applies it to dy.
struct DropoutArgs {
  Tensor y;
  Tensor x;
  Tensor scalars;  // Scalars
  float p = 0;
  uint32_t salt = 0;
};

// y = a + scale * b
struct AddArgs {
  Tensor y;
  Tensor a = {};  // absent: 0
  Tensor b;
  float scale = 1;
};

// y = sum of w[i] * x[i] over the terms that are present, which come first. Only the columns that
// the spec names are read and written; y may be the memory of a term with the same columns.
struct MixArgs {
  Tensor y;
  Tensor x[most_mixed];
  Tensor w[most_mixed] = {};  // (1) each; absent: 1
  MixSpec spec;
};

// dx[i] = prior[i] + w[i] * dy and dw[i] = the sum of dy * x[i], where they are present. dx[i] may
// be the memory of prior[i], and that of dy if its columns are those of y.
struct MixBwdArgs {
  Tensor dx[most_mixed];          // laid out as x[i]
  Tensor dw[most_mixed] = {};     // (1) acc each
  Tensor parts = {};              // (row_parts, most_mixed) acc; absent without dw
  Tensor dy;                      // laid out as y
  Tensor x[most_mixed] = {};      // read with dw[i] only
  Tensor w[most_mixed] = {};      // (1) each; absent: 1
  Tensor prior[most_mixed] = {};  // laid out as x[i]
  MixSpec spec;
};

// y = x, converted between float dtypes.
struct CopyArgs {
  Tensor y;
  Tensor x;
};

// The initial values of a parameter, with the bits of draw() (core/draw.h). A device that cannot
// decide the bits of an element adds the number of its four, element / 4, to the list `doubts`:
// their count, then as many of them as there is room for. The host draws those again.
struct DrawArgs {
  Tensor y;       // (n) f32
  Tensor doubts;  // (m) i32; the count is 0 at the start
  Init init;
  DrawKey key;
};

// --- logits ---

// nll = logsumexp - logit of the target; z = logsumexp^2, the z-loss of a row. Both are 0 where the
// target is -100. With spec.grad the logits become (weight * (softmax - onehot) + z_loss * 2 *
// logsumexp * softmax) * inv_targets * loss_scale, 0 in masked rows.
//
// fp8 receives the same gradient, divided by fp8_logits_factor() of core/fp8.h: softmax - onehot if
// there is no z-loss. Its range is known, so the kernel measures nothing: codes have the scale
// fp8_logits_scale, the scale of the site is that times the factor, and values are not rounded to
// bf16 first.
struct CrossEntropyArgs {
  Tensor nll;           // (N) acc
  Tensor z = {};        // (N) acc
  Tensor logits;        // (N, V)
  Tensor targets;       // (N) i32
  Tensor scalars = {};  // Scalars; read for gradients only
  Fp8Output fp8 = {};   // y or yt e5m2, without sums and scalars; the logits are bf16
  LossSpec spec = {};
};

// loss = [loss +] inv_targets * sum of nll, added in a fixed order
struct MeanLossArgs {
  Tensor loss;     // (1) acc
  Tensor nll;      // (N) acc
  Tensor scalars;  // Scalars
  bool add = false;
};

// logprob = log softmax(logits)[target], and the entropy of that softmax; both are 0 where the
// target is negative. At temperature 1 it has the bits of -nll of cross_entropy.
struct LogprobArgs {
  Tensor logprob;       // (N) acc
  Tensor entropy = {};  // (N) acc
  Tensor logits;        // (N, wide) acc, cut to the vocabulary and scaled by the spec
  Tensor targets;       // (N) i32
  LogprobSpec spec = {};
};

// dlogits = dlogprob * d logprob / d logits; 0 past the vocabulary and where the target is
// negative.
struct LogprobBwdArgs {
  Tensor dlogits;   // (N, wide), any float dtype; may be logits' memory
  Tensor dlogprob;  // (N) acc
  Tensor logits;    // (N, wide) acc
  Tensor targets;   // (N) i32
  LogprobSpec spec = {};
};

// Samples the next token of each row. Log-probabilities are normalised over the tokens that may be
// drawn, or over the whole vocabulary with SampleControls::as_trained; a constraint does not change
// them. A draw depends on its row alone.
struct SampleArgs {
  Tensor drawn;         // (N) Drawn
  Tensor tokens = {};   // (N) i32: the drawn tokens, for a step launched before the host reads them
  Tensor logits;        // (N, wide) acc; constrained rows are overwritten
  Tensor controls;      // (N) SampleControls
  Tensor allowed = {};  // (N, drawable / 32 rounded up) i32: a bit per token, for constrained rows
  int64_t drawable = 0;  // leading columns that may be drawn
  int64_t vocab = 0;     // leading columns that belong to the vocabulary
};

}  // namespace hearth::inline core
