// The fast CPU kernels of a model other than attention, against the reference, for every usable
// instruction set and dtype: values, equal bits at any thread count, all of an output written,
// in-place calls. test_cpu_update.cpp has the loss and the update.
#include <set>

#include "core/math.h"
#include "sys/error.h"
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

const int64_t widths[] = {1, 3, 48, 257};
const Act acts[] = {Act::none,   Act::gelu_tanh, Act::gelu_erf, Act::relu2,
                    Act::swiglu, Act::geglu,     Act::reglu,    Act::geglu_tanh};

TEST(CpuBackend, HasZeroedAlignedMemory) {
  const auto backend = make_cpu_backend(2);
  for (int64_t bytes : {int64_t(1000), int64_t(5) << 20}) {
    Buffer buffer(*backend, bytes, "a test");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
    for (int64_t i = 0; i < bytes; i += 97) ASSERT_EQ(int(buffer.data()[i]), 0);
    const int64_t sent = 0x123456789abcdef;
    int64_t got = 0;
    backend->upload(buffer.data(), &sent, 8);
    backend->download(&got, buffer.data(), 8);
    EXPECT_EQ(got, sent);
  }
  EXPECT_GT(backend->free_bytes(), 0);
  EXPECT_NE(backend->describe().find("2 threads"), std::string::npos);
}

TEST(CpuBackend, NamesWhatDoesNotFit) {
  const auto backend = make_cpu_backend(1);
  try {
    backend->allocate(int64_t(1) << 60, "the moon");
    FAIL() << "2^60 bytes were found";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the moon"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("available"), std::string::npos);
  }
}

TEST(CpuKernels, TablesAreFull) {
  for (Isa isa : usable_isas()) {
    const Kernels& k = cpu_kernels(isa);
    const auto* entry = reinterpret_cast<void* const*>(&k);
    // Drawing is the host's, and a norm is read from the cache whether or not it is joined.
    // Products with more than an epilogue run as two kernels.
    const std::set<size_t> a_cards = {
        offsetof(Kernels, sample),          offsetof(Kernels, norm_gemm),
        offsetof(Kernels, norm_gemm_takes), offsetof(Kernels, gemm_sums),
        offsetof(Kernels, norm_bwd_sums),   offsetof(Kernels, gemm_glu)};
    for (size_t i = 0; i < sizeof k / sizeof *entry; ++i)
      EXPECT_EQ(entry[i] == nullptr, a_cards.contains(i * sizeof *entry)) << i;
    EXPECT_TRUE(std::string(k.name).starts_with("cpu "));
  }
}

TEST(CpuKernels, RefuseOtherDtypes) {
  const Runner run = runner_of(best_isa(), 1, DType::f32);
  const Array x({4, 4}, DType::f64), y({4, 4}, DType::f64), z({4, 4}, DType::f32);
  EXPECT_THROW(run.k.activation(run.s, {.y = y, .x = x, .act = Act::relu2}), Error);
  EXPECT_THROW(run.k.activation(run.s, {.y = y, .x = z, .act = Act::relu2}), Error);
  EXPECT_THROW(run.k.norm(run.s, {.y = y, .x = x}), Error);
  EXPECT_THROW(run.k.copy(run.s, {.y = z, .x = Array({4, 4}, DType::f16)}), Error);
}

TEST(CpuKernels, Gemm) {
  struct Case {
    int64_t M, N, K;
    bool ta, tb;
  };
  for (DType d : dtypes)
    for (const Case& c : {Case{5, 48, 33, false, false}, Case{65, 17, 64, false, true},
                          Case{7, 130, 20, true, false}, Case{3, 5, 7, true, true}})
      for (Act act : {Act::none, Act::gelu_tanh, Act::gelu_erf, Act::relu2})
        for (bool slope : {false, true}) {
          const Array a = random(c.ta ? Shape{c.K, c.M} : Shape{c.M, c.K}, d);
          const Array b = random(c.tb ? Shape{c.N, c.K} : Shape{c.K, c.N}, d);
          const Array bias = slope ? Array() : random({c.N}, d), prior = random({c.M, c.N}, d);
          const Array saved = random({c.M, c.N}, d);
          const GemmSpec spec{
              .ta = c.ta, .tb = c.tb, .alpha = 0.5f, .act = act, .act_slope = slope};
          check("gemm", d, [&](const Runner& r) {
            Array y = r.out({c.M, c.N}), aux = slope ? saved.as(d) : r.out({c.M, c.N});
            Array onto = r.in_place(prior), sum = r.in_place_acc(prior);
            r.k.gemm(r.s, {.c = y,
                           .aux = aux,
                           .a = a,
                           .b = b,
                           .bias = bias,
                           .prior = prior.as(r.dtype),
                           .spec = spec});
            r.k.gemm(r.s,
                     {.c = onto, .a = a, .b = b, .prior = onto, .spec = {.ta = c.ta, .tb = c.tb}});
            r.k.gemm(r.s, {.c = sum,
                           .a = a,
                           .b = b,
                           .prior = sum,
                           .spec = {.ta = c.ta, .tb = c.tb, .alpha = 2}});
            return outputs(std::move(y), slope ? Array() : std::move(aux), std::move(onto),
                           std::move(sum));
          });
        }
}

TEST(CpuKernels, ColumnSum) {
  for (DType d : dtypes)
    for (int64_t C : widths)
      for (int64_t rows : {1, 31, 65}) {
        const Array x = random({rows, C}, d), start = Array::random({C}).as(DType::f32);
        check(
            "column_sum", d,
            [&](const Runner& r) {
              Array a = r.sums({C}), b = r.in_place_acc(start), parts = r.sums({row_parts, C});
              r.k.column_sum(r.s, {.out = a, .parts = parts, .x = x, .alpha = 0.5f, .add = false});
              r.k.column_sum(r.s, {.out = b, .parts = parts, .x = x, .alpha = 1, .add = true});
              return outputs(std::move(a), std::move(b));
            },
            2e-5);
      }
}

TEST(CpuKernels, Embed) {
  const int64_t B = 2, T = 7, V = 11, S = 9;
  std::vector<int32_t> token, place;
  for (int32_t i = 0; i < B * T; ++i) {
    token.push_back(i * i % 5);  // some twice, some never
    place.push_back(i % int32_t(T));
  }
  const Array ids = Array::ints({B, T}, token), positions = Array::ints({B, T}, place);
  for (DType d : dtypes)
    for (int64_t C : widths)
      for (bool with_pos : {false, true}) {
        const Array w = random({V, C}, d), pos = with_pos ? random({S, C}, d) : Array();
        const Array dy = random({B, T, C}, d), start = Array::random({V, C}).as(DType::f32);
        check("embed", d, [&](const Runner& r) {
          Array y = r.out({B, T, C}), dw = r.sums({V, C}), onto = r.in_place_acc(start);
          Array dpos = with_pos ? r.sums({S, C}) : Array();
          r.k.embed(r.s, {.y = y, .ids = ids, .w = w, .positions = positions, .pos_w = pos});
          r.k.embed_bwd(r.s,
                        {.dw = dw, .dpos_w = dpos, .dy = dy, .ids = ids, .positions = positions});
          r.k.embed_bwd(
              r.s,
              {.dw = onto, .dy = dy, .ids = ids, .positions = positions, .spec = {.add = true}});
          return outputs(std::move(y), std::move(dw), std::move(onto), std::move(dpos));
        });
      }
}

TEST(CpuKernels, Norm) {
  for (DType d : dtypes)
    for (Norm kind : {Norm::layer, Norm::rms})
      for (int64_t C : widths)
        for (bool bare : {false, true}) {
          if (kind == Norm::layer && C == 1) continue;  // a deviation of 0: all noise
          const int64_t rows = 37;
          // One column with a small eps: the gradient is what cancellation leaves.
          const NormSpec spec{.kind = kind, .eps = C == 1 ? 0.1f : 1e-5f};
          // A residual sum that bf16 holds exactly, so that both sides normalise the same numbers.
          const Array x = random({rows, C}, d), r0 = Array({rows, C}, d);
          const Array gain = bare ? Array() : random({C}, d);
          const Array bias = bare || kind == Norm::rms ? Array() : random({C}, d);
          const Array dy = random({rows, C}, d), prior = random({rows, C}, d);
          const Array start = Array::random({C}).as(DType::f32);
          Array stat({rows, 2});
          reference_kernels().norm(Array::stream(),
                                   {.y = Array({rows, C}), .stat = stat, .x = x, .spec = spec});
          const Array saved = stat.as(DType::f32);
          check("norm", d, [&](const Runner& r) {
            Array y = r.out({rows, C}), sum = r.out({rows, C}), st = r.sums({rows, 2});
            Array plain = r.out({rows, C}), dx = r.out({rows, C}), onto = r.in_place(prior);
            Array parts = r.sums({2 * row_parts, C});
            Array dgain = bare ? Array() : r.sums({C}),
                  dbias = bare ? Array() : r.in_place_acc(start);
            r.k.norm(r.s, {.y = y,
                           .sum = sum,
                           .stat = st,
                           .x = x,
                           .residual = r0,
                           .gain = gain,
                           .bias = bias,
                           .spec = spec});
            r.k.norm(r.s, {.y = plain, .x = x, .gain = gain, .bias = bias, .spec = spec});
            r.k.norm_bwd(r.s, {.dx = dx,
                               .parts = parts,
                               .dy = dy,
                               .x = x,
                               .gain = gain,
                               .stat = saved,
                               .spec = spec});
            NormSpec adding = spec;
            r.k.norm_bwd(r.s, {.dx = onto,
                               .dgain = dgain,
                               .parts = parts,
                               .dy = dy,
                               .x = x,
                               .gain = gain,
                               .stat = saved,
                               .prior = onto,
                               .spec = spec});
            adding.add = true;
            if (!bare)
              r.k.norm_bwd(r.s, {.dx = dx,
                                 .dbias = dbias,
                                 .parts = parts,
                                 .dy = dy,
                                 .x = x,
                                 .gain = gain,
                                 .stat = saved,
                                 .spec = adding});
            return outputs(std::move(y), std::move(sum), std::move(st), std::move(plain),
                           std::move(dx), std::move(onto), std::move(dgain), std::move(dbias));
          });
        }
}

TEST(CpuKernels, NormOfASumInPlace) {
  const int64_t rows = 5, C = 48;
  for (DType d : dtypes) {
    const Array x = random({rows, C}, d), r0 = random({rows, C}, d);
    for (Isa isa : usable_isas()) {
      const Runner run = runner_of(isa, 2, d);
      Array y = run.out({rows, C}), sum = run.out({rows, C});
      Array y2 = run.out({rows, C}), x2 = x.as(d);
      run.k.norm(run.s, {.y = y, .sum = sum, .x = x, .residual = r0});
      run.k.norm(run.s, {.y = y2, .sum = x2, .x = x2, .residual = r0});  // the sum over x
      EXPECT_TRUE(same_bytes(y, y2) && same_bytes(sum, x2));
    }
  }
}

TEST(CpuKernels, QkNormRope) {
  const int64_t B = 2, T = 5, S = 16;
  for (DType d : dtypes)
    for (int64_t D : {8, 24, 64, 80})
      for (QkNorm kind : {QkNorm::none, QkNorm::before_rope, QkNorm::after_rope})
        for (int turn = 0; turn < 4; ++turn) {
          const int64_t H = turn % 2 ? 4 : 6, G = turn % 2 ? 2 : 1, all = H + 2 * G;
          const int64_t rotary = turn == 3 ? 0 : turn == 2 ? D / 2 : D;
          QkSpec spec{.heads = H,
                      .kv_heads = G,
                      .head_dim = D,
                      .rotary = rotary,
                      .interleaved = turn == 1,
                      .reverse = turn == 2,
                      .norm = kind};
          Array angles({S, std::max<int64_t>(1, rotary / 2), 2});
          for (int64_t i = 0; i < Tensor(angles).numel(); i += 2) {
            angles[i] = std::cos(0.37 * double(i));
            angles[i + 1] = std::sin(0.37 * double(i));
          }
          const Array rope = angles.as(DType::f32);
          const Array positions = Array::ints({B, T}, {0, 1, 2, 3, 15, 4, 4, 9, 7, 0});
          const Array x = random({B, T, all, D}, d), dy = random({B, T, all, D}, d);
          const bool gains = kind != QkNorm::none && turn != 1;
          const Array qg = gains ? random({D}, d) : Array(), kg = gains ? random({D}, d) : Array();
          Array stat({B * T, H + G});
          if (kind != QkNorm::none)
            reference_kernels().qk_norm_rope(Array::stream(), {.y = Array({B, T, all, D}),
                                                               .stat = stat,
                                                               .qkv = x,
                                                               .positions = positions,
                                                               .rope = rope,
                                                               .spec = spec});
          const Array saved = stat.as(DType::f32);
          check("qk_norm_rope", d, [&](const Runner& r) {
            Array y = r.out({B, T, all, D}),
                  st = kind != QkNorm::none ? r.sums({B * T, H + G}) : Array();
            Array over = r.in_place(x), dx = r.out({B, T, all, D}), dover = r.in_place(dy);
            Array parts = r.sums({2 * row_parts, D});
            Array dq = gains ? r.sums({D}) : Array(), dk = gains ? r.sums({D}) : Array();
            r.k.qk_norm_rope(r.s, {.y = y,
                                   .stat = st,
                                   .qkv = x,
                                   .positions = positions,
                                   .rope = rope,
                                   .q_gain = qg,
                                   .k_gain = kg,
                                   .spec = spec});
            r.k.qk_norm_rope(r.s, {.y = over,
                                   .qkv = over,
                                   .positions = positions,
                                   .rope = rope,
                                   .q_gain = qg,
                                   .k_gain = kg,
                                   .spec = spec});
            r.k.qk_norm_rope_bwd(r.s, {.dqkv = dx,
                                       .dq_gain = dq,
                                       .dk_gain = dk,
                                       .parts = parts,
                                       .dy = dy,
                                       .qkv = x,
                                       .stat = saved,
                                       .positions = positions,
                                       .rope = rope,
                                       .q_gain = qg,
                                       .k_gain = kg,
                                       .spec = spec});
            QkSpec adding = spec;
            adding.add = true;
            r.k.qk_norm_rope_bwd(r.s, {.dqkv = dover,
                                       .dq_gain = dq,
                                       .dk_gain = dk,
                                       .parts = parts,
                                       .dy = dover,
                                       .qkv = x,
                                       .stat = saved,
                                       .positions = positions,
                                       .rope = rope,
                                       .q_gain = qg,
                                       .k_gain = kg,
                                       .spec = adding});
            return outputs(std::move(y), std::move(st), std::move(over), std::move(dx),
                           std::move(dover), std::move(dq), std::move(dk));
          });
        }
}

TEST(CpuKernels, Activation) {
  for (DType d : dtypes)
    for (int64_t C : widths)
      for (Act act : acts) {
        const int64_t rows = 9;
        const Array x = random({rows, is_glu(act) ? 2 * C : C}, d, 4), dy = random({rows, C}, d);
        check("activation", d, [&](const Runner& r) {
          Array y = r.out({rows, C}), dx = r.out(Tensor(x).shape);
          Array over = is_glu(act) ? Array() : r.in_place(x);
          r.k.activation(r.s, {.y = y, .x = x, .act = act});
          r.k.activation_bwd(r.s, {.dx = dx, .dy = dy, .x = x, .act = act});
          if (!is_glu(act)) r.k.activation(r.s, {.y = over, .x = over, .act = act});
          return outputs(std::move(y), std::move(dx), std::move(over));
        });
      }
}

TEST(CpuKernels, OutputGate) {
  const int64_t B = 2, T = 3, H = 4;
  for (DType d : dtypes)
    for (int64_t D : {1, 8, 24, 80})
      for (bool per_head : {false, true}) {
        const Array x = random({B, T, H, D}, d), dy = random({B, T, H, D}, d);
        const Shape gates = per_head ? Shape{B, T, H} : Shape{B, T, H, D};
        const Array g = random(gates, d, 3);
        check("output_gate", d, [&](const Runner& r) {
          Array y = r.out({B, T, H, D}), dx = r.out({B, T, H, D}), dg = r.out(gates);
          r.k.output_gate(r.s, {.y = y, .x = x, .g = g});
          r.k.output_gate_bwd(r.s, {.dx = dx, .dg = dg, .dy = dy, .x = x, .g = g});
          return outputs(std::move(y), std::move(dx), std::move(dg));
        });
      }
}

TEST(CpuKernels, Dropout) {
  const Array scalars = Array::of(Scalars{.seed_lo = 7, .seed_hi = 9, .step = 3, .micro = 2});
  for (DType d : dtypes)
    for (int64_t n : {1, 63, 1000, 33000}) {
      const Array x = random({n}, d);
      check("dropout", d, [&](const Runner& r) {
        Array y = r.out({n}), over = r.in_place(x);
        r.k.dropout(r.s, {.y = y, .x = x, .scalars = scalars, .p = 0.3f, .salt = 5});
        r.k.dropout(r.s, {.y = over, .x = over, .scalars = scalars, .p = 0.3f, .salt = 5});
        return outputs(std::move(y), std::move(over));
      });
    }
}

TEST(CpuKernels, AddAndCopy) {
  for (DType d : dtypes)
    for (int64_t n : {1, 257, 40000}) {
      const Array a = random({n}, d), b = random({n}, d), wide = random({n}, DType::f32);
      check("add", d, [&](const Runner& r) {
        Array y = r.out({n}), alone = r.out({n}), onto = r.in_place(a), c = r.out({n});
        Array back = r.sums({n});
        r.k.add(r.s, {.y = y, .a = a, .b = b, .scale = 0.5f});
        r.k.add(r.s, {.y = alone, .b = b, .scale = -2});
        r.k.add(r.s, {.y = onto, .a = onto, .b = b.as(r.dtype), .scale = 3});
        r.k.copy(r.s, {.y = c, .x = wide});
        r.k.copy(r.s, {.y = back, .x = a});
        return outputs(std::move(y), std::move(alone), std::move(onto), std::move(c),
                       std::move(back));
      });
    }
}

// What is computed element by element: the end that does not fill a vector has the bits that it has
// in the middle of more elements.
TEST(CpuKernels, ElementsHaveTheSameBitsAtAnyPlace) {
  constexpr int64_t most = 100;
  const auto first = [](const Array& x, int64_t n) {
    Tensor t = x;
    t.shape = {1, n};
    return t;
  };
  for (const DType d : dtypes)
    for (const Isa isa : usable_isas()) {
      const Array a = random({1, most}, d, 4), b = random({1, most}, d);
      const Runner r = runner_of(isa, 1, d);
      const auto run = [&](int64_t n) {
        Outputs all = outputs(r.out({1, most}));
        r.k.add(r.s, {.y = first(all[0], n), .a = first(a, n), .b = first(b, n), .scale = 0.3f});
        for (const Act act : acts) {
          if (is_glu(act)) continue;
          all.push_back(r.out({1, most}));
          r.k.activation(r.s, {.y = first(all.back(), n), .x = first(a, n), .act = act});
          all.push_back(r.out({1, most}));
          r.k.activation_bwd(
              r.s, {.dx = first(all.back(), n), .dy = first(b, n), .x = first(a, n), .act = act});
        }
        return all;
      };
      const Outputs whole = run(most);
      for (int64_t n = 1; n < most; ++n) {
        const Outputs part = run(n);
        for (size_t i = 0; i < whole.size(); ++i)
          EXPECT_TRUE(same_bytes(first(part[i], n), first(whole[i], n)))
              << name(isa) << " " << to_string(d) << " op " << i << " of " << n;
      }
    }
}

}  // namespace
}  // namespace hearth::cpu_test
