// The arguments of every entry of the table of kernels (core/kernels.h): one struct per entry, with
// one named field per tensor, used by every backend.
//
// Conventions. Outputs come first, then inputs, then the spec. A field with a default may be left
// out: a Tensor without data is absent. A field without a default must be given; the compiler warns
// where an initialiser leaves it out. All floats of one call share a dtype (f32, bf16, f16; f64 in
// the reference) except where marked `acc`: f32, or f64 when the others are f64. `prior` is what an
// output adds to; it may be the output's own memory. `parts` is scratch for sums in fixed parts.
#pragma once

#include "core/kernel_specs.h"
#include "core/tensor.h"

namespace hearth {

// --- attention ---

// Causal attention in O(T) memory.
struct AttentionArgs {
  Tensor y;               // (B, T, H, D)
  Tensor lse = {};        // (B, H, T) acc: log of the sum of the exponentials of the scores
  Tensor qkv;             // (B, T, H + 2G, D) packed q | k | v
  Tensor slopes = {};     // (H) f32: ALiBi adds -slope * (i - j) after the softcap
  Tensor documents = {};  // (B, T) i32: query i sees key j only if theirs are equal
  Tensor scalars = {};    // Scalars; read with dropout only
  AttnSpec spec = {};
};

struct AttentionBwdArgs {
  Tensor dqkv;            // (B, T, H + 2G, D)
  Tensor delta;           // (B, H, T) acc: scratch
  Tensor dy;              // (B, T, H, D)
  Tensor y;               // (B, T, H, D), of the forward pass
  Tensor lse;             // (B, H, T) acc, of the forward pass
  Tensor qkv;             // (B, T, H + 2G, D)
  Tensor slopes = {};     // (H) f32
  Tensor documents = {};  // (B, T) i32
  Tensor scalars = {};    // Scalars; read with dropout only
  AttnSpec spec = {};
};

// Decode and prefill over a paged cache. The rows are tokens of any sequences, those of one
// sequence side by side: row n is at positions[n] of the sequence whose keys [64 i, 64 i + 64) lie
// in block tables[sequences[n], i]. The kernel stores k and v of every row; then each query sees
// the keys of its sequence up to its own. A negative position is padding: y = 0, nothing stored.
// Blocks that no query's window reaches are not touched. Except with an fp8 cache, rows have the
// bits of `attention` for the same tokens.
struct AttentionCachedArgs {
  Tensor y;  // (1, N, H, D)
  // (blocks, 2G, cache_block, D), the heads of k before those of v. As bytes it is (blocks, 2G,
  // cache_block, D + 1) in fp8 (core/fp8.h), and every query, also that of the same token, sees
  // keys and values as stored.
  Tensor cache;
  Tensor qkv;          // (1, N, H + 2G, D)
  Tensor positions;    // (1, N) i32
  Tensor sequences;    // (1, N) i32
  Tensor tables;       // (sequences, blocks of each) i32
  Tensor slopes = {};  // (H) f32
  AttnSpec spec = {};
};

// --- logits ---

// nll = logsumexp - logit of the target, 0 where the target is -100. With spec.grad the logits
// become (softmax - onehot) * inv_targets * loss_scale, 0 in masked rows.
struct CrossEntropyArgs {
  Tensor nll;           // (N) acc
  Tensor logits;        // (N, V)
  Tensor targets;       // (N) i32
  Tensor scalars = {};  // Scalars; read with spec.grad only
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
  Tensor logits;        // (N, wide) acc, cut and scaled as the spec says
  Tensor targets;       // (N) i32
  LogprobSpec spec = {};
};

// dlogits = dlogprob times the slope of logprob; 0 past the vocabulary and in rows whose target is
// negative.
struct LogprobBwdArgs {
  Tensor dlogits;   // (N, wide) of any float; may be logits' memory
  Tensor dlogprob;  // (N) acc
  Tensor logits;    // (N, wide) acc
  Tensor targets;   // (N) i32
  LogprobSpec spec = {};
};

}  // namespace hearth
