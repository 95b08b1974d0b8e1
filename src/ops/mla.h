// Ops of latent attention (core/mla_args.h): what surrounds its products, and attention over a
// cache of latents.
#pragma once

#include "core/tape.h"
#include "ops/ops.h"

namespace hearth::inline ops {

// Rotates dims [first, first + rotary) of each head of x (B, T, heads * width).
Var rope_heads(Tape&, Var x, Var positions, Var rope, const RopeHeadsSpec&);

// Packed q | k | v (B, T, spec.packed()) of q, of kv (keys without position and values, head by
// head) and of the rotated part that all keys share.
Var pack_latent(Tape&, Var q, Var kv, Var k_rope, const LatentSpec&);

// What a paged cache of latents holds of the first tables, row by row.
struct CachedLatents {
  Var latents = {}, rope_keys = {};  // (1, sequences * blocks * cache_block, ..)
  int64_t sequences = 0, blocks = 0;
};
// Stores the latents (1, N, L) and rotated keys (1, N, R) of the rows; no gradient. With
// `sequences` 0 nothing is read back.
CachedLatents latent_cached(Tape&, Var cache, Var latent, Var k_rope, const Paged&,
                            int64_t sequences, int64_t blocks);

// Attention of the rows qkv (1, N, spec.packed()) over the keys and values `kv` (1, M,
// spec.kv_size()) that were computed from cached latents. Bits are those of attention().
Var attention_expanded(Tape&, Var qkv, Var kv, const CachedLatents&, const Paged&,
                       const LatentSpec&, const AttnSpec&);
// Attention of q (1, N, spec.q_size()) over the cached latents themselves; w (spec.kv_size(), L)
// computes keys and values from them.
Var attention_latent(Tape&, Var cache, Var q, Var w, const Paged&, const LatentSpec&,
                     const AttnSpec&);

}  // namespace hearth::inline ops
