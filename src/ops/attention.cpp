#include <algorithm>
#include <array>

#include "core/cache_layout.h"
#include "ops/ops.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

void check_packed(Tape& t, Var qkv, const QkSpec& spec) {
  const Shape s = t.shape(qkv);
  if (s.rank < 3 || s.numel() != s[0] * s[1] * spec.token())
    fail(t.where(), "expected qkv (B, T, {}), got {}", spec.token(), to_string(s));
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
      spec.norm != QkNorm::none;  // rotation alone needs no values of the forward pass
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
          .fp8 = fp8_output(in, out),
          .spec = spec});
  };
  Op op = kernel_op<&Kernels::qk_norm_rope_bwd>("qk_norm_rope_bwd", launch);
  op.inplace = {{0, 0}};
  op.fp8_result = true;
  t.push(std::move(op),
         {dy,
          normed ? t.saved(qkv) : Var{},
          normed ? t.saved(n.out[1]) : Var{},
          positions,
          rope,
          q_gain,
          k_gain,
          dq.prior,
          dk.prior,
          {},
          {}},
         {dqkv, dq.out, dk.out, parts, {}, {}, {}});
  t.add_grad(qkv, dqkv);
}

// The views of an attention call. The first three inputs of the forward node (outputs of the
// backward node) are the tensors of q, k and v; a tensor that several views share is listed once.
struct QkvPlaces {
  QkvLayout layout;
  int k, v;  // index of its tensor: 0 is q's, 1 is k's, 2 is v's own

  explicit QkvPlaces(const Qkv& x)
      : layout{x.q.layout, x.k.layout, x.v.layout},
        k(x.k.x == x.q.x ? 0 : 1),
        v(x.v.x == x.q.x   ? 0
          : x.v.x == x.k.x ? k
                           : 2) {}

  bool packed() const { return k == 0 && v == 0; }  // all in one tensor
  // Of three Vars, one per view: those of shared tensors are absent.
  std::vector<Var> once(Var q, Var own_k, Var own_v) const {
    return {q, k == 1 ? own_k : Var{}, v == 2 ? own_v : Var{}};
  }
  HeadView q_of(std::span<const Tensor> t) const { return {t[0], layout.q}; }
  HeadView k_of(std::span<const Tensor> t) const { return {t[size_t(k)], layout.k}; }
  HeadView v_of(std::span<const Tensor> t) const { return {t[size_t(v)], layout.v}; }
};

void check_views(Tape& t, const Qkv& x) {
  const HeadLayout &q = x.q.layout, &k = x.k.layout, &v = x.v.layout;
  for (const Heads& h : {x.q, x.k, x.v}) {
    const Shape s = t.shape(h.x), of_q = t.shape(x.q.x);
    const HeadLayout& l = h.layout;
    const int64_t tokens = s.rank > 2 ? s[0] * s[1] : 0;
    if (!tokens || s[0] != of_q[0] || s[1] != of_q[1] || s.numel() != tokens * l.token ||
        l.offset + (l.heads - 1) * l.head + l.width > l.token)
      fail(t.where(), "expected {} heads of {} elements in tokens of {}, got {}", l.heads, l.width,
           l.token, to_string(s));
  }
  if (k.heads < 1 || q.heads % k.heads)
    fail(t.where(), "expected kv_heads to divide {} heads, got {}", q.heads, k.heads);
  if (v.heads != k.heads)
    fail(t.where(), "expected as many heads of v as of k, got {} and {}", v.heads, k.heads);
  if (q.width != k.width)
    fail(t.where(), "expected heads of q and k of one width, got {} and {}", q.width, k.width);
}

void check_masks(Tape& t, const Masks& m, int64_t heads) {
  if (m.slopes && m.bias) fail(t.where(), "attention takes slopes or a bias by distance, not both");
  if (m.bias &&
      (t.shape(m.bias).rank != 2 || t.shape(m.bias)[0] != heads || t.shape(m.bias)[1] < 1))
    fail(t.where(), "expected a bias ({}, distances), got {}", heads, to_string(t.shape(m.bias)));
}

// Elements that no view covers would get no gradient.
void check_cover(Tape& t, const QkvPlaces& at) {
  const std::pair<int, const HeadLayout*> views[] = {
      {0, &at.layout.q}, {at.k, &at.layout.k}, {at.v, &at.layout.v}};
  for (const auto& [tensor, first] : views) {
    std::vector<int> covered(size_t(first->token));
    for (const auto& [other, l] : views)
      for (int64_t h = 0; other == tensor && h < l->heads; ++h)
        for (int64_t i = 0; i < l->width; ++i) ++covered[size_t(l->at(0, h) + i)];
    if (std::ranges::any_of(covered, [](int n) { return n != 1; }))
      fail(t.where(), "expected views of q, k and v that cover each element of a token once");
  }
}

void attention_backward(Tape& t, const Node& n, const QkvPlaces& at, const AttnSpec& spec) {
  check_cover(t, at);
  const auto same_shape = [&](Var x) { return x ? t.temp(t.shape(x)) : Var{}; };
  const Var dq = same_shape(n.in[0]), dk = same_shape(n.in[1]), dv = same_shape(n.in[2]);
  const Var delta = t.temp(t.shape(n.out[1]), t.acc()), bias = n.in[6];
  const Tape::Sink dbias = t.needs_grad(bias) ? t.grad_sink(bias) : Tape::Sink{};
  const auto launch = [at, spec](auto* f, Stream& s, In in, Out out) {
    f(s, {.dq = at.q_of(out),
          .dk = at.k_of(out),
          .dv = at.v_of(out),
          .dbias = out[4],
          .delta = out[3],
          .dy = in[3],
          .y = in[4],
          .lse = in[5],
          .q = at.q_of(in),
          .k = at.k_of(in),
          .v = at.v_of(in),
          .slopes = in[6],
          .bias = in[9],
          .dbias_prior = in[10],
          .documents = in[7],
          .scalars = in[8],
          .fp8 = fp8_output(in, out),
          .spec = spec});
  };
  Op op = kernel_op<&Kernels::attention_bwd>("attention_bwd", launch);
  op.fp8_result = at.packed();
  op.inplace = {{4, 10}};
  t.push(std::move(op),
         {t.saved(n.in[0]),
          t.saved(n.in[1]),
          t.saved(n.in[2]),
          t.grad(n.out[0]),
          t.saved(n.out[0]),
          t.saved(n.out[1]),
          n.in[3],
          n.in[4],
          n.in[5],
          bias,
          dbias.prior,
          {},
          {}},
         {dq, dk, dv, delta, dbias.out, {}, {}, {}});
  for (int i = 0; i < 3; ++i)
    if (const Var dx = std::array{dq, dk, dv}[size_t(i)]) t.add_grad(n.in[size_t(i)], dx);
}

}  // namespace

Var qk_norm_rope(Tape& t, Var qkv, Var positions, Var rope, Var q_gain, Var k_gain,
                 const QkSpec& spec) {
  check_packed(t, qkv, spec);
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

Var attention(Tape& t, const Qkv& x, const Masks& masks, const AttnSpec& spec) {
  check_views(t, x);
  const QkvPlaces at(x);
  const int64_t B = t.shape(x.q.x)[0], T = t.shape(x.q.x)[1], H = at.layout.q.heads;
  check_masks(t, masks, H);
  const Var y = t.temp({B, T, H, at.layout.v.width});
  const Var lse = t.temp({B, H, T}, t.acc());
  Op op =
      kernel_op<&Kernels::attention>("attention", [at, spec](auto* f, Stream& s, In in, Out out) {
        f(s, {.y = out[0],
              .lse = out[1],
              .q = at.q_of(in),
              .k = at.k_of(in),
              .v = at.v_of(in),
              .slopes = in[3],
              .bias = in[6],
              .documents = in[4],
              .scalars = in[5],
              .spec = spec});
      });
  op.backward = [at, spec](Tape& t, const Node& n) { attention_backward(t, n, at, spec); };
  std::vector<Var> in = at.once(x.q.x, x.k.x, x.v.x);
  for (const Var v :
       {masks.slopes, masks.documents, spec.dropout > 0 ? scalars(t) : Var{}, masks.bias})
    in.push_back(v);
  t.push(std::move(op), std::move(in), {y, lse});
  return y;
}

Var distance_bias(Tape& t, Var w, const std::string& name, std::span<const int32_t> buckets) {
  const int64_t S = int64_t(buckets.size());
  const Var ids = t.constant(name, {S}, buckets), y = t.temp({t.shape(w)[1], S}, t.acc());
  Op op =
      kernel_op<&Kernels::distance_bias>("distance_bias", [](auto* f, Stream& s, In in, Out out) {
        f(s, {.y = out[0], .w = in[0], .buckets = in[1]});
      });
  op.backward = [](Tape& t, const Node& n) {
    const Tape::Sink dw = t.grad_sink(n.in[0]);
    const auto launch = [add = bool(dw.prior)](auto* f, Stream& s, In in, Out out) {
      f(s, {.dw = out[0], .dy = in[0], .buckets = in[1], .add = add});
    };
    t.push(kernel_op<&Kernels::distance_bias_bwd>("distance_bias_bwd", launch),
           {t.grad(n.out[0]), n.in[1], dw.prior}, {dw.out});
  };
  t.push(std::move(op), {w, ids}, {y});
  return y;
}

Var attention_cached(Tape& t, Var cache, const Qkv& x, const Paged& paged, const Masks& masks,
                     const AttnSpec& spec) {
  check_views(t, x);
  const QkvPlaces at(x);
  check_masks(t, masks, at.layout.q.heads);
  const Shape s = t.shape(x.q.x), c = t.shape(cache);
  const CacheLayout own = cache_layout(at.layout.k, at.layout.v, t[cache].dtype);
  if (s[0] != 1 || c.numel() != c[0] * own.block())
    fail(t.where(), "expected rows (1, N, ..) and blocks of {} elements, got {} and {}",
         own.block(), to_string(s), to_string(c));
  const Var y = t.temp({1, s[1], at.layout.q.heads, at.layout.v.width});
  const auto launch = [at, spec, depth = paged.depth](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0],
          .cache = out[1],
          .q = at.q_of(in),
          .k = at.k_of(in),
          .v = at.v_of(in),
          .positions = in[3],
          .sequences = in[4],
          .tables = in[5],
          .slopes = in[6],
          .bias = in[7],
          .spec = spec,
          .depth = depth});
  };
  std::vector<Var> in = at.once(x.q.x, x.k.x, x.v.x);
  for (const Var v :
       {paged.positions, paged.sequences, paged.tables, masks.slopes, masks.bias, cache})
    in.push_back(v);
  t.push(kernel_op<&Kernels::attention_cached>("attention_cached", launch), std::move(in),
         {y, cache});
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

}  // namespace hearth::inline ops
