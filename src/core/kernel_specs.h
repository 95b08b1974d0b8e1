// The parameters of kernels beside their tensors: choices made when a program is recorded, and the
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
  // act is applied to its argument rounded to the dtype of c, even if aux is not stored. So
  // act(aux) can be recomputed with the same bits, and evaluation computes what training computes.
  bool act_slope = false;
  // b is a parameter, which no kernel of the program writes, so a product may read it before the
  // preceding kernels have finished.
  bool weight = false;
  float beta = 1;  // factor on prior; other than 1 only without act, bias and aux
  // Independent products of one shape: a, b, c and prior hold this many matrices, one after
  // another. More than one only without act, bias and aux.
  int64_t batch = 1;
  // Every product of the batch is symmetric, and so is its prior: a kernel may compute half of it
  // and mirror it. Either a and b are the same memory, and with neither ta nor tb, or with both, a
  // itself is symmetric; or they are symmetric matrices that commute, with neither.
  bool symmetric = false;

  // fp8 only: the GPU may keep sums of products in fewer bits, which is faster.
  bool fast_sums = false;

  // Whether every kernel for products takes it.
  bool single() const { return batch == 1 && beta == 1; }
};

// What quantise_fp8 applies to x before it rounds; see QuantiseFp8Args.
struct QuantiseFp8Spec {
  Act act = Act::none;
  bool act_slope = false;  // v = x * act'(aux) instead of act(x), as activation_bwd has it
};

struct EmbedSpec {
  bool add = false;      // dw adds to its current contents
  bool add_pos = false;  // same for dpos_w
};

enum class Norm : uint8_t { layer, rms };

struct NormSpec {
  Norm kind = Norm::rms;
  float eps = 1e-6f;
  bool add = false;  // backward: dgain and dbias add to their current contents
};

// Column sums over rows are computed in this many fixed parts, which are then added in order: the
// same bits at any thread count. Their scratch is (row_parts, columns) acc.
constexpr int64_t row_parts = 32;

enum class QkNorm : uint8_t { none, before_rope, after_rope };

struct QkSpec {
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  int64_t v_dim = 0;         // width of a head of v; 0: head_dim
  int64_t rotary = 0;        // leading dims of a head that rope rotates; 0: no rope
  bool interleaved = false;  // pairs (2i, 2i+1) rather than (i, i + rotary/2)
  bool reverse = false;      // rotate by minus the angle: y1 = x1 c + x2 s, y2 = x2 c - x1 s
  QkNorm norm = QkNorm::none;
  float eps = 1e-6f;
  bool add = false;  // backward: gain gradients add to their current contents

  // Elements of the v heads of a token, and of its packed q | k | v. Always inlined, because files
  // compiled for several instruction sets call them.
  [[gnu::always_inline]] int64_t v_size() const { return kv_heads * (v_dim ? v_dim : head_dim); }
  [[gnu::always_inline]] int64_t token() const { return (heads + kv_heads) * head_dim + v_size(); }
};

// Where heads of q, k or v lie in a tensor of tokens: head h of token n is the `width` elements
// that start at offset + n * token + h * head.
struct HeadLayout {
  int64_t heads = 1, width = 1;
  int64_t offset = 0;
  int64_t token = 1, head = 1;  // elements from one token to the next, from one head to the next

  // Always inlined, because files compiled for several instruction sets call it.
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

// A mix adds up to this many values, each times a weight.
constexpr int most_mixed = 3;

// Where one operand of a mix lies: in every row of `row` elements, from column `begin` on.
struct Columns {
  int64_t begin = 0, row = 0;
};

struct MixSpec {
  int64_t width = 0;  // columns of every operand that are mixed
  Columns y = {}, x[most_mixed] = {};
  bool add[most_mixed] = {};  // backward: dw[i] adds to its current contents

  // Whether every operand is a whole tensor. An absent one has rows of 0 elements.
  [[gnu::always_inline]] bool dense() const {
    bool all = y.row == width;
    for (const Columns& c : x) all = all && (c.row == width || c.row == 0);
    return all;
  }
};

struct AttnSpec {
  int64_t window = 0;  // query i sees key j iff 0 <= i - j < window; 0: no limit
  float scale = 1;
  float softcap = 0;  // s = softcap * tanh(s / softcap); 0: off
  float dropout = 0;  // of the probabilities; element ((b * heads + h) * T + i) * T + j
  uint32_t salt = 0;
  bool apart = false;  // attention_cached: row n belongs to sequence n
};

constexpr int64_t cache_block = 64;  // tokens in a block of a paged cache

struct LossSpec {
  int64_t vocab = 0;  // columns of the vocabulary; with grad the logits after them become 0. 0: all
  float softcap = 0;
  bool grad = false;  // overwrite the logits with the gradient of the loss terms
  float weight = 1;   // of the cross-entropy in the gradient
  float z_loss = 0;   // of the z-loss in the gradient
};

struct LogprobSpec {
  int64_t vocab = 0;  // columns of the vocabulary; 0: all
  float softcap = 0;
  float temperature = 1;  // divides the logits, after the softcap
};

// How the device samples the next token of a row; the host samples rows that need other controls.
struct SampleControls {
  float temperature = 0;  // 0: the most likely token, the lowest id among equals
  float min_p = 0, top_p = 1;
  int32_t top_k = 0;
  uint32_t uniform_low = 0, uniform_high = 0;  // the uniform draw in [0, 1), times 2^64
  int32_t as_trained = 0;   // 1: log-probabilities as the logprob kernel has them, at temperature
  int32_t constrained = 0;  // 1: only tokens in the row of SampleArgs::allowed; not as_trained
};
struct Drawn {
  int32_t token = 0;
  float logprob = 0;  // of the model, before the other controls
  int32_t likeliest = 0;
  float likeliest_logprob = 0;
};

}  // namespace hearth::inline core
