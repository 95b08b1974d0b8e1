// The op cases of latent attention. D is the width of the rotated part, N that of the other part of
// a head and V that of a head of v.
#include <cmath>

#include "op_cases.h"
#include "ops/mla.h"

namespace hearth::cases {
namespace {

std::vector<Dims> latent_sizes() {
  return {{.B = 2, .T = 5, .N = 3, .H = 4, .D = 4, .V = 5},
          {.B = 1, .T = 1, .N = 1, .H = 1, .D = 2, .V = 1},
          {.B = 2, .T = 9, .N = 32, .H = 3, .D = 32, .V = 64},
          {.B = 1, .T = 23, .N = 8, .H = 2, .D = 150, .V = 16}};
}
constexpr Dims large_latent{.B = 4, .T = 1024, .N = 32, .H = 12, .D = 32, .V = 64};

Var rope_of(Recorder& r) {
  const int64_t T = r.d.T, half = r.d.D / 2;
  std::vector<float> table;  // cos and sin of arbitrary angles
  for (int64_t i = 0; i < T * half; ++i)
    table.push_back(float(std::cos(0.7 * double(i)))),
        table.push_back(float(std::sin(0.7 * double(i))));
  return r.t.constant("rope", {T, half, 2}, table);
}

OpCase rope_case(const char* name, bool interleaved, bool reverse, bool in_the_middle) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var at = r.ids("at", {B, T}, [T = T](int64_t i) { return (i * 3 + 1) % T; });
    const int64_t width = N + D + (in_the_middle ? 3 : 0);
    const Var x = r.x("x", {B, T, H * width});
    r.output(rope_heads(r.t, x, at, rope_of(r),
                        {.heads = H,
                         .width = width,
                         .first = N,
                         .rotary = D,
                         .interleaved = interleaved,
                         .reverse = reverse}));
    if (in_the_middle) r.output(add(r.t, x, x, 0.5f));  // then x cannot be overwritten
  };
  return {name, record, latent_sizes(), large_latent};
}

void record_pack(Recorder& r) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const LatentSpec spec{.heads = H, .nope = N, .rope = D, .v = V};
  const Var q = r.x("q", {B, T, spec.q_size()}), kv = r.x("kv", {B, T, spec.kv_size()});
  r.output(pack_latent(r.t, q, kv, r.x("k_rope", {B, T, D}), spec));
}

// The whole of it: products, norm, rotation and attention.
void record_latent(Recorder& r) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const LatentSpec spec{.heads = H, .nope = N, .rope = D, .v = V};
  const int64_t widths[] = {11, D};
  const Var at = r.ids("at", {B, T}, [T = T](int64_t i) { return i % T; });
  const Var x = r.x("x", {B, T, C}), rope = rope_of(r);
  const std::vector<Var> parts =
      split_columns(r.t, linear(r.t, x, r.weight("kv_a", {11 + D, C})), widths);
  const Var latent = norm(r.t, parts[0], {}, r.vector("gain", 11), {}, {}).y;
  const Var k_rope = rope_heads(r.t, parts[1], at, rope, {.width = D, .rotary = D});
  const Var q = rope_heads(r.t, linear(r.t, x, r.weight("q", {spec.q_size(), C})), at, rope,
                           {.heads = H, .width = spec.qk(), .first = N, .rotary = D});
  const Var kv = linear(r.t, latent, r.weight("kv_b", {spec.kv_size(), 11}));
  const Var qkv = pack_latent(r.t, q, kv, k_rope, spec);
  r.output(attention(r.t, packed(qkv, packed_qkv(H, H, spec.qk(), V)), {},
                     {.scale = float(1 / std::sqrt(double(spec.qk())))}));
}

}  // namespace

std::vector<OpCase> mla_cases() {
  const Dims large{.B = 4, .T = 512, .C = 768, .N = 32, .H = 12, .D = 32, .V = 64};
  return {
      rope_case("rope_heads", false, false, false),
      rope_case("rope_heads_interleaved", true, false, false),
      rope_case("rope_heads_reverse", true, true, true),
      rope_case("rope_heads_kept", false, true, true),
      {"pack_latent", record_pack, latent_sizes(), large_latent},
      {"latent_attention",
       record_latent,
       {{.B = 2, .T = 5, .C = 12, .N = 4, .H = 4, .D = 4, .V = 8},
        {.B = 1, .T = 40, .C = 16, .N = 8, .H = 2, .D = 8, .V = 24}},
       large},
  };
}

}  // namespace hearth::cases
