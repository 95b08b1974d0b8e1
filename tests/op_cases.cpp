// The op cases that have no file of their own, and the list of all of them.
#include "op_cases.h"

#include <cmath>

namespace hearth::cases {
namespace {

constexpr float dropout_p = 0.3f;

OpCase linear_case(const char* name, Act act, bool with_bias, bool joins) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    LinearSpec spec{.act = act};
    const Var x = r.x("x", {B, T, C}), w = r.weight("w", {N, C});
    if (with_bias) spec.bias = r.vector("b", N);
    if (joins) spec.residual = r.x("r", {B, T, N}), spec.scale = 0.5f;
    r.output(linear(r.t, x, w, spec));
  };
  return {name,
          record,
          {{.B = 2, .T = 3, .C = 8, .N = 6},
           {.B = 1, .T = 1, .C = 1, .N = 1},
           {.B = 3, .T = 7, .C = 33, .N = 17},
           {.B = 2, .T = 40, .C = 64, .N = 96}},
          {.B = 4, .T = 256, .C = 768, .N = 3072}};
}

// The slope of `act` is folded into the product that computes the hidden layer's gradient.
OpCase chain_case(const char* name, Act act) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var x = r.x("x", {B, T, C});
    const Var h = linear(r.t, x, r.weight("w1", {N, C}), {.bias = r.vector("b1", N), .act = act});
    r.output(linear(r.t, h, r.weight("w2", {C, N}), {.residual = x}));
  };
  return {name,
          record,
          {{.B = 2, .T = 3, .C = 8, .N = 6}, {.B = 1, .T = 13, .C = 5, .N = 34}},
          {.B = 4, .T = 256, .C = 768, .N = 3072}};
}

// One hidden value with three readers: two products, and an op that cannot fold the slope.
void record_shared(Recorder& r) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const Var x = r.x("x", {B, T, C});
  const Var h = linear(r.t, x, r.weight("w1", {N, C}), {.act = Act::gelu_tanh});
  r.output(linear(r.t, h, r.weight("w2", {C, N})));
  r.output(linear(r.t, h, r.weight("w3", {C, N}), {.scale = 2}));
  r.output(add(r.t, h, r.x("z", {B, T, N}), 0.5f));
}

// Uses a weight, its gradient and an activation twice each.
void record_twice(Recorder& r) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const Var x = r.x("x", {B, T, C}), w = r.weight("w", {C, C}), b = r.vector("b", C);
  const Var y = linear(r.t, x, w, {.bias = b});
  r.output(linear(r.t, y, w, {.bias = b, .residual = x}));
  r.output(y);
}

OpCase embed_case(const char* name, bool positions) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var ids = r.ids("ids", {B, T}, [V = V](int64_t i) { return i * i % V; });  // with repeats
    Var at, table;
    if (positions) {
      at = r.ids("at", {B, T}, [T = T](int64_t i) { return i % T / 2; });
      table = r.weight("positions", {T, C});
    }
    r.output(embed(r.t, ids, r.weight("table", {V, C}), at, table));
  };
  return {name,
          record,
          {{.B = 2, .T = 5, .C = 12, .V = 7}, {.B = 3, .T = 9, .C = 33, .V = 40}},
          {.B = 8, .T = 256, .C = 768, .V = 50257}};
}

void record_gather(Recorder& r) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const Var x = r.x("x", {B, T, C});
  r.output(gather_rows(r.t, x, r.ids("ids", {B, 2}, [n = B * T](int64_t i) { return n - 1 - i; })));
  r.output(add(r.t, x, x, 0.5f));  // so that the rows add to an existing gradient
}

enum class Joins { none, both, only_normed, only_sum };

OpCase norm_case(const char* name, NormSpec spec, bool gain, bool bias, Joins joins) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var x = r.x("x", {B, T, C}), res = joins == Joins::none ? Var{} : r.x("r", {B, T, C});
    const Normed n = norm(r.t, x, res, gain ? r.vector("gain", C) : Var{},
                          bias ? r.vector("bias", C) : Var{}, spec);
    if (joins != Joins::only_sum) r.output(n.y);
    if (joins == Joins::both || joins == Joins::only_sum) r.output(n.sum);
  };
  return {name,
          record,
          {{.B = 2, .T = 3, .C = 12}, {.B = 1, .T = 1, .C = 3}, {.B = 3, .T = 23, .C = 65}},
          {.B = 8, .T = 256, .C = 768}};
}

struct Rope {
  double rotary = 1;  // fraction of a head
  bool interleaved = false, reverse = false;
  int64_t v_dim = 0;  // width of a v head; 0: that of q and k
};

OpCase qk_case(const char* name, QkNorm norms, bool gains, int64_t kv_share, Rope rope) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const int64_t G = std::max<int64_t>(1, H / kv_share);
    const int64_t rotary = int64_t(rope.rotary * double(D)) / 2 * 2;
    std::vector<float> table;  // cos and sin of arbitrary angles
    for (int64_t i = 0; i < T * rotary / 2; ++i)
      table.push_back(float(std::cos(0.7 * double(i)))),
          table.push_back(float(std::sin(0.7 * double(i))));
    const Var turn = rotary ? r.t.constant("rope", {T, rotary / 2, 2}, table) : Var{};
    const Var at = r.ids("at", {B, T}, [T = T](int64_t i) { return (i * 3 + 1) % T; });
    const Var qkv = r.x("qkv", {B, T, (H + G) * D + G * (rope.v_dim ? rope.v_dim : D)});
    r.output(qk_norm_rope(r.t, qkv, at, turn, gains ? r.vector("q_gain", D) : Var{},
                          gains ? r.vector("k_gain", D) : Var{},
                          {.heads = H,
                           .kv_heads = G,
                           .head_dim = D,
                           .v_dim = rope.v_dim,
                           .rotary = rotary,
                           .interleaved = rope.interleaved,
                           .reverse = rope.reverse,
                           .norm = norms}));
  };
  return {name,
          record,
          {{.B = 2, .T = 5, .H = 4, .D = 8},
           {.B = 1, .T = 3, .H = 3, .D = 20},
           {.B = 2, .T = 19, .H = 2, .D = 64}},
          {.B = 4, .T = 256, .H = 12, .D = 64}};
}

// Rows of several sequences, of which one begins in the middle, with padding at the end.
OpCase offset_case(const char* name, int64_t kv_share, int64_t parts, int64_t v_dim, bool shared) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const HeadLayout k = packed_qkv(H, std::max<int64_t>(1, H / kv_share), D, v_dim ? v_dim : D).k;
    const Var at = r.ids("at", {B, T}, [T = T](int64_t i) {
      const int64_t b = i / T, t = i % T;
      return b > 0 && t == T - 1 ? -1 : t < 3 ? t + 2 * b : t % 3 ? t % 7 : 0;
    });
    const Var qkv = r.x("qkv", {B, T, k.token});
    r.output(offset_keys(r.t, qkv, at, k, D / parts));
    if (shared) r.output(add(r.t, qkv, qkv, 0.5f));
  };
  return {name,
          record,
          {{.B = 2, .T = 5, .H = 4, .D = 8},
           {.B = 1, .T = 1, .H = 2, .D = 6},
           {.B = 3, .T = 23, .H = 2, .D = 20},
           {.B = 2, .T = 150, .H = 2, .D = 64}},
          {.B = 4, .T = 256, .H = 12, .D = 64}};
}

// The layout of q, k and v: in one tensor; in three; or q alone, and k and v head by head in one.
enum class Lies { packed, apart, by_head };

struct Attend {
  int64_t kv_share = 1;          // query heads per KV head; 0: all
  int64_t v_num = 1, v_den = 1;  // a v head is v_num / v_den times as wide as one of q and k
  Lies lies = Lies::packed;
  int64_t window = 0;
  float softcap = 0, dropout = 0;
  bool alibi = false, documents = false;
  bool relative = false;  // a bias by distance, which two calls share

  int64_t v_width(int64_t D) const { return std::max<int64_t>(1, D * v_num / v_den); }
};

// Documents of odd lengths that differ between rows.
int64_t document_of(int64_t b, int64_t i) { return (i + b) / 5; }

Qkv attended(Recorder& r, const Attend& a, int64_t G) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const int64_t W = a.v_width(D);
  const auto x = [&r, B = B, T = T](const char* name, int64_t token) {
    return r.x(name, {B, T, token}, 1.5);
  };
  if (a.lies == Lies::packed) return packed(x("qkv", (H + G) * D + G * W), packed_qkv(H, G, D, W));
  const Heads q{x("q", H * D), {H, D, 0, H * D, D}};
  if (a.lies == Lies::apart)
    return {q, {x("k", G * D), {G, D, 0, G * D, D}}, {x("v", G * W), {G, W, 0, G * W, W}}};
  const Var kv = x("kv", G * (D + W));
  return {q, {kv, {G, D, 0, G * (D + W), D + W}}, {kv, {G, W, D, G * (D + W), D + W}}};
}

Masks masks_of(Recorder& r, const Attend& a) {
  const int64_t T = r.d.T, H = r.d.H;
  Masks masks;
  if (a.alibi) {
    std::vector<float> slopes;
    for (int64_t h = 0; h < H; ++h) slopes.push_back(std::exp2(float(-h - 1)));
    masks.slopes = r.t.constant("slopes", {H}, slopes);
  }
  if (a.documents)
    masks.documents =
        r.ids("documents", {r.d.B, T}, [T](int64_t i) { return document_of(i / T, i % T); });
  const int32_t buckets[] = {0, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5};
  if (a.relative)
    masks.bias = distance_bias(r.t, r.weight("table", {6, H}), "buckets", std::span(buckets));
  return masks;
}

OpCase attention_case(const char* name, const Attend& a) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const int64_t G = a.kv_share ? std::max<int64_t>(1, H / a.kv_share) : 1;
    const Masks masks = masks_of(r, a);
    AttnSpec spec{.window = a.window,
                  .scale = float(1 / std::sqrt(double(D))),
                  .softcap = a.softcap,
                  .dropout = a.dropout,
                  .salt = 77};
    const Qkv heads = attended(r, a, G);
    r.output(attention(r.t, heads, masks, spec));
    if (!a.relative) return;
    spec.salt = 78, spec.scale *= 0.5f;
    r.output(attention(r.t, heads, masks, spec));
  };
  const auto sees = [a](int64_t b, int64_t i, int64_t j) {
    return (!a.window || i - j < a.window) &&
           (!a.documents || document_of(b, i) == document_of(b, j));
  };
  // The scores of a single token have no gradient, so there is nothing to compare of a bias.
  const Dims least{.B = 1, .T = a.relative ? 2 : 1, .H = 2, .D = 2};
  return {name,
          record,
          {{.B = 2, .T = 7, .H = 4, .D = 8},
           least,
           {.B = 1, .T = 37, .H = 2, .D = 20},
           {.B = 2, .T = 70, .H = 2, .D = 64}},
          {.B = 2, .T = 512, .H = 12, .D = 64},
          sees,
          [a](int64_t D) { return a.v_width(D); },
          a.lies == Lies::packed};
}

OpCase gate_case(const char* name, bool per_head) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var x = r.x("x", {B, T, H, D});
    r.output(output_gate(r.t, x, r.x("g", per_head ? Shape{B, T, H} : Shape{B, T, H, D}, 3)));
  };
  return {name,
          record,
          {{.B = 2, .T = 3, .H = 4, .D = 8}, {.B = 1, .T = 5, .H = 3, .D = 7}},
          {.B = 8, .T = 256, .H = 12, .D = 64}};
}

OpCase activation_case(const char* name, Act act) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    r.output(activation(r.t, r.x("x", {B, T, is_glu(act) ? 2 * N : N}, 4), act));
  };
  return {name,
          record,
          {{.B = 2, .T = 3, .N = 9}, {.B = 1, .T = 1, .N = 1}, {.B = 3, .T = 11, .N = 67}},
          {.B = 4, .T = 256, .N = 3072}};
}

void record_dropout(Recorder& r) {
  const auto [B, T, C, N, H, D, V] = r.d;
  r.output(dropout(r.t, r.x("x", {B, T, C}), dropout_p, "case"));
}

OpCase add_case(const char* name, float scale, bool same) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var x = r.x("x", {B, T, C}), y = same ? x : r.x("y", {B, T, C});
    r.output(add(r.t, x, y, scale));
  };
  return {name,
          record,
          {{.B = 2, .T = 3, .C = 12}, {.B = 1, .T = 7, .C = 33}},
          {.B = 8, .T = 256, .C = 768}};
}

// The first term's gradient adds to that of another reader; `twice` uses the weights again.
OpCase mix_case(const char* name, int terms, bool twice) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    std::vector<Weighted> all;
    for (int i = 0; i < terms; ++i) {
      const std::string n = std::to_string(i);
      all.push_back({r.x("x" + n, {B, T, C}), r.vector("w" + n, 1)});
    }
    const Var y = mix(r.t, all);
    r.output(y);
    r.output(add(r.t, all[0].x, y, 0.5f));
    if (!twice) return;
    all[0].x = y;
    r.output(mix(r.t, all));
  };
  return {name,
          record,
          {{.B = 2, .T = 3, .C = 12}, {.B = 1, .T = 7, .C = 33}, {.B = 3, .T = 31, .C = 40}},
          {.B = 8, .T = 256, .C = 768}};
}

// Packed heads whose v mixes with one or two other values. The second one is a part of the packed
// tensor itself, as the first layer's values are.
OpCase mix_values_case(const char* name, int others, bool turns) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const QkvLayout l = packed_qkv(H, H / 2, D, D);
    const int64_t size = l.v.heads * l.v.width;
    const Var qkv = r.x("qkv", {B, T, l.v.token});
    std::vector<Weighted> all{{r.x("embed", {B, T, size}), r.vector("w_embed", 1)}};
    if (others > 1) all.push_back({columns(r.t, qkv, l.v.offset, size), r.vector("w_first", 1)});
    const QkSpec spec{
        .heads = H, .kv_heads = H / 2, .head_dim = D, .norm = QkNorm::before_rope, .eps = 1e-6f};
    const Var turned = turns ? qk_norm_rope(r.t, qkv, {}, {}, {}, {}, spec) : qkv;
    const Var y = mix_values(r.t, turned, qkv, r.vector("w_own", 1), all, l.v);
    r.output(y);
    r.output(add(r.t, all[0].x, all[0].x, 0.5f));
  };
  return {name,
          record,
          {{.B = 2, .T = 3, .H = 4, .D = 8},
           {.B = 1, .T = 7, .H = 2, .D = 5},
           {.B = 3, .T = 31, .H = 2, .D = 12}},
          {.B = 8, .T = 256, .H = 12, .D = 64}};
}

// Three parts of uneven widths, one of them with another reader, joined in another order.
void record_parts(Recorder& r) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const int64_t first = C / 2, widths[] = {first, 1, C - first - 1};
  const std::vector<Var> parts = split_columns(r.t, r.x("x", {B, T, C}), widths);
  const Var y =
      join_columns(r.t, std::vector{parts[2], r.x("more", {B, T, 3}), parts[0], parts[1]});
  r.output(y);
  r.output(add(r.t, parts[0], parts[0], 0.5f));
}

std::vector<OpCase> make_cases() {
  const NormSpec layer{.kind = Norm::layer, .eps = 1e-5f}, rms{.kind = Norm::rms, .eps = 1e-6f};
  const std::vector<Dims> rows{{.B = 2, .T = 3, .C = 12, .N = 10},
                               {.B = 1, .T = 9, .C = 33, .N = 5}};
  const Dims wide{.B = 4, .T = 256, .C = 768, .N = 768};
  return {
      linear_case("linear", Act::none, false, false),
      linear_case("linear_bias", Act::none, true, false),
      linear_case("linear_join", Act::none, true, true),
      linear_case("linear_gelu_tanh", Act::gelu_tanh, true, false),
      linear_case("linear_gelu_erf", Act::gelu_erf, false, false),
      linear_case("linear_relu2", Act::relu2, true, false),
      chain_case("linear_chain_gelu_tanh", Act::gelu_tanh),
      chain_case("linear_chain_gelu_erf", Act::gelu_erf),
      chain_case("linear_chain_relu2", Act::relu2),
      {"linear_shared", record_shared, rows, wide},
      {"linear_twice", record_twice, rows, wide},
      embed_case("embed", false),
      embed_case("embed_positions", true),
      {"gather_rows", record_gather, rows, wide},
      norm_case("norm_layer", layer, true, true, Joins::none),
      norm_case("norm_layer_plain", layer, false, false, Joins::none),
      norm_case("norm_layer_gain", layer, true, false, Joins::only_normed),
      norm_case("norm_layer_join", layer, true, true, Joins::both),
      norm_case("norm_rms", rms, true, false, Joins::none),
      norm_case("norm_rms_plain", rms, false, false, Joins::none),
      norm_case("norm_rms_join", rms, true, false, Joins::both),
      norm_case("norm_rms_join_plain", rms, false, false, Joins::only_normed),
      norm_case("norm_rms_sum", rms, true, false, Joins::only_sum),
      qk_case("qk_rope", QkNorm::none, false, 1, {}),
      qk_case("qk_rope_interleaved", QkNorm::none, false, 2, {.interleaved = true}),
      qk_case("qk_rope_reverse", QkNorm::none, false, 2, {.reverse = true}),
      qk_case("qk_rope_partial", QkNorm::none, false, 1, {.rotary = 0.5, .reverse = true}),
      qk_case("qk_norm", QkNorm::before_rope, true, 2, {.rotary = 0}),
      qk_case("qk_norm_before", QkNorm::before_rope, true, 2, {}),
      qk_case("qk_norm_before_plain", QkNorm::before_rope, false, 1,
              {.rotary = 0.5, .interleaved = true, .reverse = true}),
      qk_case("qk_norm_after", QkNorm::after_rope, true, 4, {.interleaved = true}),
      qk_case("qk_norm_after_plain", QkNorm::after_rope, false, 2, {.rotary = 0.5}),
      qk_case("qk_rope_wide_v", QkNorm::none, false, 2, {.v_dim = 24}),
      qk_case("qk_norm_narrow_v", QkNorm::before_rope, true, 1, {.rotary = 0.5, .v_dim = 8}),
      offset_case("offset_keys", 1, 2, 0, false),
      offset_case("offset_keys_shared", 2, 3, 24, true),
      attention_case("attention_mha", {}),
      attention_case("attention_gqa", {.kv_share = 2}),
      attention_case("attention_mqa", {.kv_share = 0}),
      attention_case("attention_window", {.kv_share = 2, .window = 3}),
      attention_case("attention_softcap", {.softcap = 2}),
      attention_case("attention_alibi", {.kv_share = 2, .alibi = true}),
      attention_case("attention_relative", {.relative = true}),
      attention_case("attention_relative_gqa", {.kv_share = 2, .softcap = 2, .relative = true}),
      attention_case("attention_relative_documents",
                     {.kv_share = 0, .v_num = 2, .documents = true, .relative = true}),
      attention_case("attention_relative_window",
                     {.kv_share = 2, .window = 9, .dropout = dropout_p, .relative = true}),
      attention_case("attention_documents", {.documents = true}),
      attention_case("attention_dropout", {.kv_share = 2, .dropout = dropout_p}),
      attention_case("attention_narrow_v", {.v_num = 3, .v_den = 4}),
      attention_case("attention_wide_v", {.kv_share = 2, .v_num = 2}),
      attention_case("attention_wide_v_window",
                     {.kv_share = 0, .v_num = 3, .v_den = 2, .window = 3, .documents = true}),
      attention_case("attention_apart", {.kv_share = 2, .v_den = 2, .lies = Lies::apart}),
      attention_case("attention_by_head", {.kv_share = 2,
                                           .v_num = 2,
                                           .v_den = 3,
                                           .lies = Lies::by_head,
                                           .window = 20,
                                           .dropout = dropout_p}),
      attention_case("attention_all", {.kv_share = 2,
                                       .window = 4,
                                       .softcap = 3,
                                       .dropout = dropout_p,
                                       .alibi = true,
                                       .documents = true}),
      gate_case("output_gate", false),
      gate_case("output_gate_head", true),
      activation_case("activation_gelu_tanh", Act::gelu_tanh),
      activation_case("activation_gelu_erf", Act::gelu_erf),
      activation_case("activation_relu2", Act::relu2),
      activation_case("activation_swiglu", Act::swiglu),
      activation_case("activation_geglu", Act::geglu),
      activation_case("activation_reglu", Act::reglu),
      activation_case("activation_geglu_tanh", Act::geglu_tanh),
      {"dropout", record_dropout, rows, wide},
      add_case("add", 1, false),
      add_case("add_scaled", 0.25f, false),
      add_case("add_itself", 0.25f, true),
      mix_case("mix_two", 2, false),
      mix_case("mix_three", 3, false),
      mix_case("mix_twice", 3, true),
      mix_values_case("mix_values", 1, true),
      mix_values_case("mix_values_first", 2, true),
      mix_values_case("mix_values_unturned", 2, false),
      {"split_and_join_columns", record_parts, rows, wide},
  };
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> cases = make_cases();
    for (OpCase& c : head_cases()) cases.push_back(std::move(c));
    for (OpCase& c : mla_cases()) cases.push_back(std::move(c));
    for (OpCase& c : moe_cases()) cases.push_back(std::move(c));
    return cases;
  }();
  return all;
}

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> r;
  for (const OpCase& c : op_cases())
    if (c.sees) r.push_back(c);
  return r;
}

}  // namespace hearth::cases
