// The ops a model is built from. Each function records nodes and their backward rules on the tape
// and returns the output. An absent optional tensor is Var{}.
#pragma once

#include <span>
#include <vector>

#include "core/memory_budget.h"
#include "core/tape.h"

namespace hearth::inline ops {

// The buffer of Scalars that all programs read.
Var scalars(Tape&);

// --- linear.cpp ---
struct LinearSpec {
  Var bias = {};
  Var residual = {};
  Act act = Act::none;  // not a GLU; excludes residual and scale
  float scale = 1;
  bool fp8 = true;  // in fp8, where the tape records products in it
};
// y = scale * act(x wᵀ + bias) + residual, w (out, in)
Var linear(Tape&, Var x, Var w, const LinearSpec& = {});

// --- fp8.cpp ---
// The state of the scales of all tensors that the programs of a model round to fp8: an Fp8Site in
// each row of (most_fp8_sites, 16) bytes.
Var fp8_sites(Tape&);
// Begins a step of all sites: the largest values so far become those of the previous step.
void advance_fp8_sites(Tape&);

// --- embed.cpp ---
// w[ids] + pos_w[positions]
Var embed(Tape&, Var ids, Var w, Var positions = {}, Var pos_w = {});
// Rows of x (.., C) by index: (ids.., C). A negative id is padding: nothing may use its row. If x
// needs a gradient, the other ids must be distinct.
Var gather_rows(Tape&, Var x, Var ids);
// The token before each token of its sequence, by PreviousTokensArgs; no gradient. Absent results
// are not computed.
struct PreviousTokens {
  Var before, row, bigram;  // (B, T) i32; `row` only without a cache
};
struct PreviousSpec {
  bool before = false, row = false;  // which results to compute
  int64_t buckets = 0;               // more than 0: bigram, too
};
// (B, T) i32: the token `by` positions further in the same sequence, or no_token; no gradient.
Var further_tokens(Tape&, Var tokens, Var positions, int64_t by);
struct Paged;
PreviousTokens previous_tokens(Tape&, Var tokens, Var positions, const PreviousSpec&);
// With a paged cache of tokens, a state (blocks, cache_block) i32.
PreviousTokens previous_tokens_cached(Tape&, Var cache, Var tokens, const Paged&,
                                      const PreviousSpec&);
// Places rows of w (R, C) in y, read as (n, C): row i is w[from[i]], or zeros where from[i] < 0.
// Each row of w appears at most once. `name` names the constant that holds `from`.
Var spread_rows(Tape&, Var w, Shape y, const std::string& name, std::span<const int32_t> from);

// --- norm.cpp ---
struct Normed {
  Var y;
  Var sum;  // x + residual, or x itself
};
Normed norm(Tape&, Var x, Var residual, Var gain, Var bias, const NormSpec&);

// --- offset_keys.cpp ---
// Packed q | k | v (B, T, k.token) with, in every head of k, the dims from `first` on of the token
// before; see OffsetKeysArgs.
Var offset_keys(Tape&, Var qkv, Var positions, const HeadLayout& k, int64_t first);
// With a paged cache of these dims, a state (blocks, cache_block * k.heads * (k.width - first)).
Var offset_keys_cached(Tape&, Var cache, Var qkv, const Paged&, const HeadLayout& k, int64_t first);

// --- attention.cpp ---
// On packed q | k | v (B, T, spec.token()).
Var qk_norm_rope(Tape&, Var qkv, Var positions, Var rope, Var q_gain, Var k_gain, const QkSpec&);
// What changes or hides scores; at most one of slopes and bias.
struct Masks {
  Var slopes = {};     // (H) ALiBi
  Var documents = {};  // (B, T) i32
  Var bias = {};       // (H, S) acc, of distance_bias()
};
// (H, S) acc: the column of w (n, H) of each head, by distance. buckets[d] is the row of w for the
// distance d; distances from S - 1 on share the last one. `name` names the constant that holds
// them.
Var distance_bias(Tape&, Var w, const std::string& name, std::span<const int32_t> buckets);
// Heads of q, k or v inside x (B, T, ..); see HeadLayout.
struct Heads {
  Var x;
  HeadLayout layout;
};
struct Qkv {
  Heads q, k, v;
};
inline Qkv packed(Var qkv, const QkvLayout& l) { return {{qkv, l.q}, {qkv, l.k}, {qkv, l.v}}; }
// (B, T, H, width of v). For the gradient, the views must together cover their tensors.
Var attention(Tape&, const Qkv&, const Masks&, const AttnSpec&);
// The tokens in the rows of a ragged batch, as AttentionCachedArgs describes them.
struct Paged {
  Var positions, sequences;  // (1, N) i32
  Var tables;                // (sequences, blocks of each) i32
  int64_t depth = 0;         // blocks of a table that the rows see at most; 0: all
};
// The masks have no documents.
Var attention_cached(Tape&, Var cache, const Qkv&, const Paged&, const Masks&, const AttnSpec&);
Var output_gate(Tape&, Var x, Var g);

// --- pointwise.cpp ---
Var activation(Tape&, Var x, Act);
Var dropout(Tape&, Var x, float p, const std::string& salt);
Var add(Tape&, Var a, Var b, float scale = 1);  // a + scale * b

// --- mix.cpp ---
// A value and the parameter (1) that weighs it.
struct Weighted {
  Var x, weight;
};
// The weighted sum of 2 or 3 different values of one shape.
Var mix(Tape&, std::span<const Weighted> terms);
// Columns [begin, begin + width) of x (.., C): (.., width). If x needs a gradient, another reader
// of x must be recorded later: its gradient is what this one is added to.
Var columns(Tape&, Var x, int64_t begin, int64_t width);
// The columns of x (.., C) in consecutive parts of these widths, which add up to C; and the
// reverse.
std::vector<Var> split_columns(Tape&, Var x, std::span<const int64_t> widths);
Var join_columns(Tape&, std::span<const Var> parts);
// Packed q | k | v with the weighted sum of its v and of 1 or 2 `others` (B, T, size of v) in the
// place of v. `unturned` is qkv before qk_norm_rope, which has the same v: the backward pass reads
// v there, so that qkv need not be kept. `own` weighs v.
Var mix_values(Tape&, Var qkv, Var unturned, Var own, std::span<const Weighted> others,
               const HeadLayout& v);

// --- loss.cpp ---
// A loss term whose value is the mean of `rows` (N, 1) acc over the targets of the step. The op
// that computes the rows records their gradient itself, with scaled_gradient() and the term's
// weight.
Var mean_loss(Tape&, Var rows, LossTerm);

struct HeadSpec {
  float scale = 1;  // of the logits, before the softcap
  float softcap = 0;
  int64_t chunk_rows = 0;  // of logits at a time; 0: as many as make about chunk_bytes
  int64_t chunk_bytes = least_logits_chunk_bytes;
  bool grad = false;        // training: also record the gradients of x and w
  bool grad_w = true;       // off: that of x alone
  bool acc_logits = false;  // logits in acc, as in head_logprob; not with grad
  LossTerm term = {.name = "next_token"};
  float z_loss = 0;  // weight of a second term, "z_loss": the mean square of logsumexp(logits)
};
// Mean negative log-likelihood of targets (B, T) under softmax(scale * x wᵀ), as a loss term of the
// tape. The result "nll" (B * T, 1) holds it per token ("<term>.nll" after the first term of a
// tape). Only one chunk of logits exists at a time; with `grad` its gradient is consumed before the
// next chunk is computed, so the head has no second pass.
Var head_loss(Tape&, Var x, Var w, Var targets, const HeadSpec&);

struct HeadLogprobSpec {
  float scale = 1;  // of the logits, before the softcap
  float softcap = 0;
  float temperature = 1;   // divides the logits, after the softcap
  bool entropy = false;    // of each row, in the result "entropy" (N, 1)
  int64_t chunk_rows = 0;  // as in HeadSpec
  int64_t chunk_bytes = least_logits_chunk_bytes;
  int64_t keep_bytes = 0;  // logits of all rows are kept for the backward rule if they fit
};
// Log-probability of each target (N elements; negative: 0, and no gradient) under softmax(scale * x
// wᵀ): the result "logprob" (N, 1) acc. The gradient is known only after all log-probabilities are,
// so the backward rule reads kept logits or recomputes each chunk, with the same bits.
Var head_logprob(Tape&, Var x, Var w, Var targets, const HeadLogprobSpec&);

}  // namespace hearth::inline ops
