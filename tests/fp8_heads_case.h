// Shared by the tests of gradients of qkv that kernels write in fp8 themselves: attention and the
// norm and rotation of q and k, with the fp8 output and with a separate rounding after them.
#pragma once

#include "fp8_output_case.h"
#include "head_views.h"

namespace hearth::cases {

struct HeadsResult {
  std::vector<bf16> dqkv;
  std::vector<float> dq_gain, dk_gain;
  RoundResult fp8;
};

// --- attention ---

struct AttnFp8Case {
  int64_t B = 1, T = 16, H = 1, G = 1, D = 16;
  int64_t window = 0;
  bool documents = false;  // of 90 tokens each
  bool delayed = false, early = false;
  float previous = 0;
  float size = 1;  // of the gradient
  bool sums = true;

  QkvLayout layout() const { return packed_qkv(H, G, D, D); }
  int64_t width() const { return layout().q.token; }
  Fp8Buffers::Spec out() const {
    return {.R = B * T,
            .C = width(),
            .format = DType::e5m2,
            .delayed = delayed,
            .previous = previous,
            .early = early};
  }
};

inline HeadsResult attention_bwd_on(Backend& b, const AttnFp8Case& c, Rounded how) {
  const int64_t n = c.B * c.T;
  const Shape packed{c.B, c.T, c.width()}, out{c.B, c.T, c.H, c.D}, rows{c.B, c.H, c.T};
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(int32_t(i % c.T / 90));
  const OnDevice<bf16> x(b, random_bf16(packed.numel(), 1), packed, DType::bf16);
  const OnDevice<bf16> dy(b, random_bf16(out.numel(), 2, c.size), out, DType::bf16);
  const OnDevice<bf16> dx(b, random_bf16(packed.numel(), 9), packed, DType::bf16);
  const OnDevice<bf16> y(b, random_bf16(out.numel(), 9), out, DType::bf16);
  const OnDevice<float> lse(b, std::vector<float>(size_t(rows.numel())), rows, DType::f32);
  const OnDevice<float> delta(b, std::vector<float>(size_t(rows.numel())), rows, DType::f32);
  const OnDevice<int32_t> documents(b, ids, {c.B, c.T}, DType::i32);
  const Tensor mask = c.documents ? Tensor(documents) : Tensor{};
  const AttnSpec spec{.window = c.window, .scale = float(1 / std::sqrt(double(c.D)))};
  const QkvViews in = packed_views(x, c.layout());
  const Tensor none{};
  const QkvViews grad =
      packed_views(how == Rounded::by_kernel_alone ? none : Tensor(dx), c.layout());
  const Fp8Buffers to(b, c.out());
  Fp8Output own = to.output();
  if (!c.sums) own.sums = {};
  b.kernels().attention(
      b.stream(),
      {.y = y, .lse = lse, .q = in.q, .k = in.k, .v = in.v, .documents = mask, .spec = spec});
  b.kernels().attention_bwd(b.stream(), {.dq = grad.q,
                                         .dk = grad.k,
                                         .dv = grad.v,
                                         .delta = delta,
                                         .dy = dy,
                                         .y = y,
                                         .lse = lse,
                                         .q = in.q,
                                         .k = in.k,
                                         .v = in.v,
                                         .documents = mask,
                                         .fp8 = how == Rounded::separately ? Fp8Output{} : own,
                                         .spec = spec});
  if (how == Rounded::separately) b.kernels().quantise_fp8(b.stream(), {.to = own, .x = dx});
  b.synchronize();
  return {dx.read(), {}, {}, to.read()};
}

// --- norm and rotation ---

struct QkFp8Case {
  int64_t tokens = 16;
  QkSpec spec = {};
  bool gains = false;
  bool delayed = false;
  float previous = 0;
  bool in_place = false;  // dqkv overwrites dy
  bool sums = false;

  Fp8Buffers::Spec out() const {
    return {.R = tokens,
            .C = spec.token(),
            .format = DType::e5m2,
            .delayed = delayed,
            .previous = previous};
  }
};

inline HeadsResult qk_bwd_on(Backend& b, const QkFp8Case& c, Rounded how) {
  const int64_t n = c.tokens, D = c.spec.head_dim, heads = c.spec.heads + c.spec.kv_heads;
  const Shape packed{1, n, c.spec.token()};
  const bool normed = c.spec.norm != QkNorm::none;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(int32_t(i * 7 % n));
  std::vector<float> angles;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < c.spec.rotary / 2; ++k) {
      const double angle = double(i) * std::pow(10000.0, -2.0 * double(k) / double(c.spec.rotary));
      angles.push_back(float(std::cos(angle))), angles.push_back(float(std::sin(angle)));
    }
  if (angles.empty()) angles.push_back(0);
  const OnDevice<bf16> x(b, random_bf16(packed.numel(), 1), packed, DType::bf16);
  const OnDevice<bf16> dy(b, random_bf16(packed.numel(), 2), packed, DType::bf16);
  const OnDevice<bf16> own_dx(b, random_bf16(packed.numel(), 9), packed, DType::bf16);
  const OnDevice<bf16>& dx = c.in_place ? dy : own_dx;
  const OnDevice<bf16> q_gain(b, random_bf16(D, 3), {D}, DType::bf16);
  const OnDevice<bf16> k_gain(b, random_bf16(D, 4), {D}, DType::bf16);
  const OnDevice<float> dq(b, std::vector<float>(size_t(D)), {D}, DType::f32);
  const OnDevice<float> dk(b, std::vector<float>(size_t(D)), {D}, DType::f32);
  const OnDevice<float> parts(b, std::vector<float>(size_t(2 * row_parts * D)), {2 * row_parts, D},
                              DType::f32);
  std::vector<float> inverses;
  for (int64_t i = 0; i < n * heads; ++i) inverses.push_back(0.5f + float(i % 5) / 4);
  const OnDevice<float> stat(b, inverses, {n, heads}, DType::f32);
  const OnDevice<int32_t> positions(b, ids, {1, n}, DType::i32);
  const OnDevice<float> rope(b, angles, {n, std::max<int64_t>(1, c.spec.rotary / 2), 2},
                             DType::f32);
  const Fp8Buffers to(b, c.out());
  Fp8Output own = to.output();
  if (!c.sums) own.sums = {};
  const auto when = [](bool given, const auto& t) { return given ? Tensor(t) : Tensor{}; };
  const bool gains = c.gains && normed, turns = c.spec.rotary > 0;
  b.kernels().qk_norm_rope_bwd(b.stream(), {.dqkv = when(how != Rounded::by_kernel_alone, dx),
                                            .dq_gain = when(gains, dq),
                                            .dk_gain = when(gains, dk),
                                            .parts = when(gains, parts),
                                            .dy = dy,
                                            .qkv = when(normed, x),
                                            .stat = when(normed, stat),
                                            .positions = when(turns, positions),
                                            .rope = when(turns, rope),
                                            .q_gain = when(gains, q_gain),
                                            .k_gain = when(gains, k_gain),
                                            .fp8 = how == Rounded::separately ? Fp8Output{} : own,
                                            .spec = c.spec});
  if (how == Rounded::separately) b.kernels().quantise_fp8(b.stream(), {.to = own, .x = dx});
  b.synchronize();
  return {dx.read(), dq.read(), dk.read(), to.read()};
}

}  // namespace hearth::cases
