#include "core/fp8.h"
#include "ops/ops.h"
#include "sys/error.h"

namespace hearth {
namespace {

void check_packed(Tape& t, Var qkv, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  const Shape s = t.shape(qkv);
  if (s.rank != 4 || s[2] != heads + 2 * kv_heads || s[3] != head_dim)
    fail(t.where(), "expected qkv (B, T, {}, {}), got {}", heads + 2 * kv_heads, head_dim,
         to_string(s));
  if (kv_heads < 1 || heads % kv_heads)
    fail(t.where(), "expected kv_heads to divide {} heads, got {}", heads, kv_heads);
}

void qk_backward(Tape& t, const Node& n, QkSpec spec) {
  const Var qkv = n.in[0], positions = n.in[1], rope = n.in[2], q_gain = n.in[3], k_gain = n.in[4];
  const Var dy = t.grad(n.out[0]), dqkv = t.temp(t.shape(qkv));
  Tape::Sink dq, dk;
  Var parts;
  if (t.needs_grad(q_gain)) {
    dq = t.grad_sink(q_gain);
    dk = t.grad_sink(k_gain);
    parts = t.temp({2 * row_parts, spec.head_dim}, t.acc());
    spec.add = bool(dq.prior);
  }
  const bool normed =
      spec.norm != QkNorm::none;  // rotation alone needs nothing of the forward pass
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.dqkv = out[0],
          .dq_gain = out[1],
          .dk_gain = out[2],
          .parts = out[3],
          .dy = in[0],
          .qkv = in[1],
          .stat = in[2],
          .positions = in[3],
          .rope = in[4],
          .q_gain = in[5],
          .k_gain = in[6],
          .spec = spec});
  };
  Op op = kernel_op<&Kernels::qk_norm_rope_bwd>("qk_norm_rope_bwd", launch);
  op.inplace = {{0, 0}};
  t.push(std::move(op),
         {dy, normed ? t.saved(qkv) : Var{}, normed ? t.saved(n.out[1]) : Var{}, positions, rope,
          q_gain, k_gain, dq.prior, dk.prior},
         {dqkv, dq.out, dk.out, parts});
  t.add_grad(qkv, dqkv);
}

void attention_backward(Tape& t, const Node& n, const AttnSpec& spec) {
  const Var qkv = n.in[0], dqkv = t.temp(t.shape(qkv));
  const Var delta = t.temp(t.shape(n.out[1]), t.acc());
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.dqkv = out[0],
          .delta = out[1],
          .dy = in[0],
          .y = in[1],
          .lse = in[2],
          .qkv = in[3],
          .slopes = in[4],
          .documents = in[5],
          .scalars = in[6],
          .spec = spec});
  };
  t.push(kernel_op<&Kernels::attention_bwd>("attention_bwd", launch),
         {t.grad(n.out[0]), t.saved(n.out[0]), t.saved(n.out[1]), t.saved(qkv), n.in[1], n.in[2],
          n.in[3]},
         {dqkv, delta});
  t.add_grad(qkv, dqkv);
}

}  // namespace

Var qk_norm_rope(Tape& t, Var qkv, Var positions, Var rope, Var q_gain, Var k_gain,
                 const QkSpec& spec) {
  check_packed(t, qkv, spec.heads, spec.kv_heads, spec.head_dim);
  if (spec.rotary % 2 || spec.rotary > spec.head_dim || bool(rope) != (spec.rotary > 0))
    fail(t.where(), "expected an even rotary size up to {} with its table, got {}", spec.head_dim,
         spec.rotary);
  if (bool(q_gain) != bool(k_gain)) fail(t.where(), "expected gains of both q and k, or none");
  const Shape s = t.shape(qkv);
  const Var y = t.temp(s);
  const Var stat = spec.norm == QkNorm::none
                       ? Var{}
                       : t.temp({s[0] * s[1], spec.heads + spec.kv_heads}, t.acc());
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0],
          .stat = out[1],
          .qkv = in[0],
          .positions = in[1],
          .rope = in[2],
          .q_gain = in[3],
          .k_gain = in[4],
          .spec = spec});
  };
  Op op = kernel_op<&Kernels::qk_norm_rope>("qk_norm_rope", launch);
  op.inplace = {{0, 0}};
  op.backward = [spec](Tape& t, const Node& n) { qk_backward(t, n, spec); };
  t.push(std::move(op), {qkv, positions, rope, q_gain, k_gain}, {y, stat});
  return y;
}

Var attention(Tape& t, Var qkv, const Masks& masks, const AttnSpec& spec) {
  check_packed(t, qkv, spec.heads, spec.kv_heads, spec.head_dim);
  const int64_t B = t.shape(qkv)[0], T = t.shape(qkv)[1];
  const Var y = t.temp({B, T, spec.heads, spec.head_dim});
  const Var lse = t.temp({B, spec.heads, T}, t.acc());
  Op op = kernel_op<&Kernels::attention>("attention", [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0],
          .lse = out[1],
          .qkv = in[0],
          .slopes = in[1],
          .documents = in[2],
          .scalars = in[3],
          .spec = spec});
  });
  op.backward = [spec](Tape& t, const Node& n) { attention_backward(t, n, spec); };
  t.push(std::move(op), {qkv, masks.slopes, masks.documents, spec.dropout > 0 ? scalars(t) : Var{}},
         {y, lse});
  return y;
}

Var attention_cached(Tape& t, Var cache, Var qkv, const Paged& paged, Var slopes,
                     const AttnSpec& spec) {
  check_packed(t, qkv, spec.heads, spec.kv_heads, spec.head_dim);
  const Shape s = t.shape(qkv), c = t.shape(cache);
  const CacheFormat format = t[cache].dtype == DType::u8 ? CacheFormat::fp8 : CacheFormat::plain;
  const int64_t wide = cache_width(format, spec.head_dim);
  if (s[0] != 1 || c[1] != 2 * spec.kv_heads || c[2] != cache_block || c[3] != wide)
    fail(t.where(), "expected rows (1, N, ..) and a cache (blocks, {}, {}, {}), got {} and {}",
         2 * spec.kv_heads, cache_block, wide, to_string(s), to_string(c));
  const Var y = t.temp({1, s[1], spec.heads, spec.head_dim});
  const auto launch = [spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0],
          .cache = out[1],
          .qkv = in[0],
          .positions = in[1],
          .sequences = in[2],
          .tables = in[3],
          .slopes = in[4],
          .spec = spec});
  };
  t.push(kernel_op<&Kernels::attention_cached>("attention_cached", launch),
         {qkv, paged.positions, paged.sequences, paged.tables, slopes, cache}, {y, cache});
  return y;
}

Var output_gate(Tape& t, Var x, Var g) {
  const Var y = t.temp(t.shape(x));
  Op op = kernel_op<&Kernels::output_gate>("output_gate", [](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .x = in[0], .g = in[1]});
  });
  op.backward = [](Tape& t, const Node& n) {
    const Var dx = t.temp(t.shape(n.in[0])), dg = t.temp(t.shape(n.in[1]));
    const auto launch = [](auto* f, Stream& s, In in, Out out) {
      f(s, {.dx = out[0], .dg = out[1], .dy = in[0], .x = in[1], .g = in[2]});
    };
    t.push(kernel_op<&Kernels::output_gate_bwd>("output_gate_bwd", launch),
           {t.grad(n.out[0]), t.saved(n.in[0]), t.saved(n.in[1])}, {dx, dg});
    t.add_grad(n.in[0], dx);
    t.add_grad(n.in[1], dg);
  };
  t.push(std::move(op), {x, g}, {y});
  return y;
}

}  // namespace hearth
