// What a kernel is told beside its tensors: choices made when a program is recorded, and the
// structs that sampling reads and writes in device memory.
#pragma once

#include "core/math.h"
#include "core/update_rules.h"

namespace hearth::inline core {

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
  int64_t v_dim = 0;         // width of a head of v; 0: head_dim
  int64_t rotary = 0;        // leading dims of a head that turn; 0: no rope
  bool interleaved = false;  // pairs (2i, 2i+1) rather than (i, i + rotary/2)
  bool reverse = false;      // turn by minus the angle: y1 = x1 c + x2 s, y2 = x2 c - x1 s
  QkNorm norm = QkNorm::none;
  float eps = 1e-6f;
  bool add = false;  // backward: gain gradients add to what is there

  // Elements of the heads of v, and of a token's packed q | k | v. Always inlined, as files
  // compiled for several instruction sets call them.
  [[gnu::always_inline]] int64_t v_size() const { return kv_heads * (v_dim ? v_dim : head_dim); }
  [[gnu::always_inline]] int64_t token() const { return (heads + kv_heads) * head_dim + v_size(); }
};

// Where heads of q, k or v lie in a tensor of tokens: head h of token n is the `width` elements
// from offset + n * token + h * head on.
struct HeadLayout {
  int64_t heads = 1, width = 1;
  int64_t offset = 0;
  int64_t token = 1, head = 1;  // elements from one token to the next, from one head to the next

  // Always inlined, as files compiled for several instruction sets call it.
  [[gnu::always_inline]] int64_t at(int64_t n, int64_t h) const {
    return offset + n * token + h * head;
  }
  bool operator==(const HeadLayout&) const = default;
};

// The three layouts in one packed tensor, q | k | v side by side in every token.
struct QkvLayout {
  HeadLayout q, k, v;
  bool operator==(const QkvLayout&) const = default;
};
constexpr QkvLayout packed_qkv(int64_t heads, int64_t kv_heads, int64_t qk_width, int64_t v_width) {
  const int64_t k = heads * qk_width, v = k + kv_heads * qk_width, token = v + kv_heads * v_width;
  return {{heads, qk_width, 0, token, qk_width},
          {kv_heads, qk_width, k, token, qk_width},
          {kv_heads, v_width, v, token, v_width}};
}

struct AttnSpec {
  int64_t window = 0;  // key j is seen by query i iff 0 <= i - j < window; 0: no limit
  float scale = 1;
  float softcap = 0;  // s = softcap * tanh(s / softcap); 0: off
  float dropout = 0;  // of the probabilities; element ((b * heads + h) * T + i) * T + j
  uint32_t salt = 0;
  bool apart = false;  // attention_cached: row n belongs to sequence n
};

constexpr int64_t cache_block = 64;  // tokens in a block of a paged cache

struct LossSpec {
  int64_t vocab = 0;  // columns that count; the logits after them become 0 with grad. 0: all
  float softcap = 0;
  bool grad = false;  // overwrite the logits with the gradient of the loss terms
  float weight = 1;   // of the cross-entropy in that gradient
  float z_loss = 0;   // of the z-loss in that gradient
};

struct LogprobSpec {
  int64_t vocab = 0;  // columns that count; 0: all
  float softcap = 0;
  float temperature = 1;  // divides the logits, after the softcap
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

}  // namespace hearth::inline core
