// The arguments of the kernels for latent attention (MLA), by the conventions of
// core/kernel_args.h. A token keeps a latent of L elements, from which the keys and values of all
// heads are computed, and one rotated part of R elements that the keys of all heads share. A head
// of q or k is its part without position, `nope` elements, then its rotated part.
#pragma once

#include "core/kernel_specs.h"
#include "core/tensor.h"

// The part of the list in core/kernels.h for latent attention.
#define HEARTH_MLA_KERNELS(KERNEL)        \
  KERNEL(rope_heads, RopeHeadsArgs)       \
  KERNEL(pack_latent, PackLatentArgs)     \
  KERNEL(unpack_latent, UnpackLatentArgs) \
  KERNEL(latent_cached, LatentCachedArgs) \
  KERNEL(latent_panels, LatentPanelsArgs) \
  KERNEL(attention_latent, AttentionLatentArgs)

namespace hearth::inline core {

// Widths of the heads of latent attention. Members are always inlined, because files compiled for
// several instruction sets call them.
struct LatentSpec {
  int64_t heads = 1;
  int64_t nope = 0, rope = 0;  // parts of a head of q and k
  int64_t v = 1;               // width of a head of v

  [[gnu::always_inline]] int64_t qk() const { return nope + rope; }
  // Elements of a token: q; k without position and v, head by head; packed q | k | v.
  [[gnu::always_inline]] int64_t q_size() const { return heads * qk(); }
  [[gnu::always_inline]] int64_t kv_size() const { return heads * (nope + v); }
  [[gnu::always_inline]] int64_t packed() const { return heads * (2 * qk() + v); }
};

struct RopeHeadsSpec {
  int64_t heads = 1, width = 1;   // heads of a token, one after another
  int64_t first = 0, rotary = 0;  // the dims of each head that are rotated; rotary is even
  bool interleaved = false;       // pairs (2i, 2i+1) rather than (i, i + rotary/2)
  bool reverse = false;           // rotate by minus the angle

  [[gnu::always_inline]] int64_t token() const { return heads * width; }
};

// Rotates some dims of each head by the row positions[b, t] of rope; copies the others.
struct RopeHeadsArgs {
  Tensor y;          // (B, T, heads * width); may be x's memory
  Tensor x;          // (B, T, heads * width)
  Tensor positions;  // (B, T) i32; negative: padding, reads row 0
  Tensor rope;       // (S, rotary / 2, 2) f32: cos, sin
  RopeHeadsSpec spec = {};
};

// Packs q | k | v, as attention takes them: the rotated part of the keys is repeated in every head.
struct PackLatentArgs {
  Tensor y;       // (B, T, spec.packed())
  Tensor q;       // (B, T, spec.q_size())
  Tensor kv;      // (B, T, spec.kv_size()): of each head k without position, then v
  Tensor k_rope;  // (B, T, rope)
  LatentSpec spec = {};
};

// The gradient of pack_latent; absent outputs are not computed. dk_rope is the sum over the heads,
// in their order.
struct UnpackLatentArgs {
  Tensor dq = {};       // (B, T, spec.q_size())
  Tensor dkv = {};      // (B, T, spec.kv_size())
  Tensor dk_rope = {};  // (B, T, rope)
  Tensor dy;            // (B, T, spec.packed())
  LatentSpec spec = {};
};

// Stores the latent and the rotated key of each row in a paged cache; rows, sequences and tables
// are those of AttentionCachedArgs. A token's row in a block is its latent, then its rotated key.
// Then copies the first `blocks` blocks of the first `sequences_read` tables, so that position p
// of sequence s is row s * blocks * cache_block + p. Rows of negative blocks are not written.
struct LatentCachedArgs {
  Tensor latents = {};    // (sequences_read * blocks * cache_block, L); absent: nothing is copied
  Tensor rope_keys = {};  // (sequences_read * blocks * cache_block, R)
  Tensor cache;           // (all blocks, cache_block * (L + R))
  Tensor latent;          // (1, N, L)
  Tensor k_rope;          // (1, N, R)
  Tensor positions;       // (1, N) i32; negative: padding, not stored
  Tensor sequences;       // (1, N) i32
  Tensor tables;          // (sequences, blocks of each) i32
  int64_t sequences_read = 0, blocks = 0;
};

// Arranges keys and values in blocks as attention_cached reads them (CacheLayout with all heads).
struct LatentPanelsArgs {
  Tensor panels;     // (M / cache_block, heads * cache_block * (qk + v))
  Tensor kv;         // (M, spec.kv_size())
  Tensor rope_keys;  // (M, rope)
  LatentSpec spec = {};
};

// Attention over cached latents without computing keys and values: q is multiplied by the rows of
// w that compute keys, compared with latents, and the weighted sum of latents is multiplied by the
// rows of w that compute values. The rows' own latents must already be stored. Equal to attention
// over keys and values up to rounding; a row's bits do not depend on other rows.
struct AttentionLatentArgs {
  Tensor y;          // (1, N, H, V)
  Tensor cache;      // (blocks, cache_block * (L + R))
  Tensor q;          // (1, N, spec.q_size()), rotated
  Tensor w;          // (spec.kv_size(), L)
  Tensor positions;  // (1, N) i32; negative: padding, y = 0
  Tensor sequences;  // (1, N) i32
  Tensor tables;     // (sequences, blocks of each) i32
  LatentSpec spec = {};
  AttnSpec attn = {};  // window and scale only
  int64_t depth = 0;   // as in AttentionCachedArgs
};
// The widest latent that attention_latent takes on every backend.
constexpr int64_t most_absorbed = 512;

}  // namespace hearth::inline core
