// The fast CPU kernels other than attention, against the reference, for every usable instruction
// set and dtype: values, equal bits at any thread count, all of an output written, in-place calls.
#include <set>

#include "core/math.h"
#include "sys/error.h"
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

const int64_t widths[] = {1, 3, 48, 257};
const Act acts[] = {Act::none,   Act::gelu_tanh, Act::gelu_erf, Act::relu2,
                    Act::swiglu, Act::geglu,     Act::reglu};

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
    const std::set<size_t> a_cards = {offsetof(Kernels, sample), offsetof(Kernels, norm_gemm),
                                      offsetof(Kernels, norm_gemm_takes)};
    for (size_t i = 0; i < sizeof k / sizeof *entry; ++i)
      EXPECT_EQ(entry[i] == nullptr, a_cards.contains(i * sizeof *entry)) << i;
    EXPECT_TRUE(std::string(k.name).starts_with("cpu "));
  }
}

TEST(CpuKernels, RefuseOtherDtypes) {
  const Runner run = runner_of(best_isa(), 1, DType::f32);
  const Array x({4, 4}, DType::f64), y({4, 4}, DType::f64), z({4, 4}, DType::f32);
  EXPECT_THROW(run.k.activation(run.s, y, x, Act::relu2), Error);
  EXPECT_THROW(run.k.activation(run.s, y, z, Act::relu2), Error);
  EXPECT_THROW(run.k.norm(run.s, y, none, none, x, none, none, none, {}), Error);
  EXPECT_THROW(run.k.copy(run.s, z, Array({4, 4}, DType::f16)), Error);
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
            r.k.gemm(r.s, y, aux, a, b, bias, prior.as(r.dtype), spec);
            r.k.gemm(r.s, onto, none, a, b, none, onto, {.ta = c.ta, .tb = c.tb});
            r.k.gemm(r.s, sum, none, a, b, none, sum, {.ta = c.ta, .tb = c.tb, .alpha = 2});
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
              r.k.column_sum(r.s, a, parts, x, 0.5f, false);
              r.k.column_sum(r.s, b, parts, x, 1, true);
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
          r.k.embed(r.s, y, ids, w, positions, pos);
          r.k.embed_bwd(r.s, dw, dpos, dy, ids, positions, {});
          r.k.embed_bwd(r.s, onto, none, dy, ids, positions, {.add = true});
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
          reference_kernels().norm(Array::stream(), Array({rows, C}), none, stat, x, none, none,
                                   none, spec);
          const Array saved = stat.as(DType::f32);
          check("norm", d, [&](const Runner& r) {
            Array y = r.out({rows, C}), sum = r.out({rows, C}), st = r.sums({rows, 2});
            Array plain = r.out({rows, C}), dx = r.out({rows, C}), onto = r.in_place(prior);
            Array parts = r.sums({2 * row_parts, C});
            Array dgain = bare ? Array() : r.sums({C}),
                  dbias = bare ? Array() : r.in_place_acc(start);
            r.k.norm(r.s, y, sum, st, x, r0, gain, bias, spec);
            r.k.norm(r.s, plain, none, none, x, none, gain, bias, spec);
            r.k.norm_bwd(r.s, dx, none, none, parts, dy, x, gain, saved, none, spec);
            NormSpec adding = spec;
            r.k.norm_bwd(r.s, onto, dgain, none, parts, dy, x, gain, saved, onto, spec);
            adding.add = true;
            if (!bare) r.k.norm_bwd(r.s, dx, none, dbias, parts, dy, x, gain, saved, none, adding);
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
      run.k.norm(run.s, y, sum, none, x, r0, none, none, {});
      run.k.norm(run.s, y2, x2, none, x2, r0, none, none, {});  // the sum over x
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
            reference_kernels().qk_norm_rope(Array::stream(), Array({B, T, all, D}), stat, x,
                                             positions, rope, none, none, spec);
          const Array saved = stat.as(DType::f32);
          check("qk_norm_rope", d, [&](const Runner& r) {
            Array y = r.out({B, T, all, D}),
                  st = kind != QkNorm::none ? r.sums({B * T, H + G}) : Array();
            Array over = r.in_place(x), dx = r.out({B, T, all, D}), dover = r.in_place(dy);
            Array parts = r.sums({2 * row_parts, D});
            Array dq = gains ? r.sums({D}) : Array(), dk = gains ? r.sums({D}) : Array();
            r.k.qk_norm_rope(r.s, y, st, x, positions, rope, qg, kg, spec);
            r.k.qk_norm_rope(r.s, over, none, over, positions, rope, qg, kg, spec);
            r.k.qk_norm_rope_bwd(r.s, dx, dq, dk, parts, dy, x, saved, positions, rope, qg, kg,
                                 spec);
            QkSpec adding = spec;
            adding.add = true;
            r.k.qk_norm_rope_bwd(r.s, dover, dq, dk, parts, dover, x, saved, positions, rope, qg,
                                 kg, adding);
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
          r.k.activation(r.s, y, x, act);
          r.k.activation_bwd(r.s, dx, dy, x, act);
          if (!is_glu(act)) r.k.activation(r.s, over, over, act);
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
          r.k.output_gate(r.s, y, x, g);
          r.k.output_gate_bwd(r.s, dx, dg, dy, x, g);
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
        r.k.dropout(r.s, y, x, scalars, 0.3f, 5);
        r.k.dropout(r.s, over, over, scalars, 0.3f, 5);
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
        r.k.add(r.s, y, a, b, 0.5f);
        r.k.add(r.s, alone, none, b, -2);
        r.k.add(r.s, onto, onto, b.as(r.dtype), 3);
        r.k.copy(r.s, c, wide);
        r.k.copy(r.s, back, a);
        return outputs(std::move(y), std::move(alone), std::move(onto), std::move(c),
                       std::move(back));
      });
    }
}

TEST(CpuKernels, CrossEntropy) {
  const Array scalars = Array::of(Scalars{.inv_targets = 0.25f, .loss_scale = 2});
  for (DType d : dtypes)
    for (int64_t V : {2, 48, 257, 2500})
      for (float cap : {0.0f, 3.0f}) {
        const int64_t N = 5;
        const Array x = random({N, V}, d, 6);
        const int32_t last = int32_t(V) - 1;
        const Array targets = Array::ints({N}, {0, last, -100, last / 2, 1});
        check("cross_entropy", d, [&](const Runner& r) {
          Array nll = r.sums({N}), same = r.sums({N}), loss = r.sums({1});
          Array kept = r.in_place(x), grad = r.in_place(x);
          r.k.cross_entropy(r.s, {.nll = nll,
                                  .logits = kept,
                                  .targets = targets,
                                  .scalars = scalars,
                                  .spec = {.softcap = cap}});
          r.k.cross_entropy(r.s, {.nll = same,
                                  .logits = grad,
                                  .targets = targets,
                                  .scalars = scalars,
                                  .spec = {.softcap = cap, .grad = true}});
          r.k.mean_loss(r.s, {.loss = loss, .nll = nll, .scalars = scalars, .add = false});
          r.k.mean_loss(r.s, {.loss = loss, .nll = same, .scalars = scalars, .add = true});
          return outputs(std::move(nll), std::move(same), std::move(loss), std::move(kept),
                         std::move(grad));
        });
      }
}

// A row's loss has the same bits whichever rows are beside it.
TEST(CpuKernels, CrossEntropyRowsStandAlone) {
  const int64_t N = 6, V = 1500;
  const Array scalars = Array::of(Scalars{});
  for (DType d : dtypes) {
    const Array x = random({N, V}, d, 6), targets = Array::ints({N}, {5, 1, 9, 1499, 0, 77});
    for (Isa isa : usable_isas()) {
      const Runner run = runner_of(isa, 2, d);
      Array all = run.sums({N}), one = run.sums({1});
      run.k.cross_entropy(run.s, {.nll = all, .logits = x, .targets = targets, .scalars = scalars});
      for (int64_t i = 0; i < N; ++i) {
        const Tensor row{Tensor(x).data + i * V * size_of(d), {1, V}, d};
        const Tensor target{Tensor(targets).data + 4 * i, {1}, DType::i32};
        run.k.cross_entropy(run.s,
                            {.nll = one, .logits = row, .targets = target, .scalars = scalars});
        EXPECT_EQ(*Tensor(one).as<float>(), Tensor(all).as<float>()[i]) << i;
      }
    }
  }
}

TEST(CpuKernels, CrossEntropySurvivesExtremes) {
  const Array scalars = Array::of(Scalars{});
  for (Isa isa : usable_isas()) {
    const Runner run = runner_of(isa, 1, DType::f32);
    Array x({2, 3}, DType::f32), nll = run.sums({2});
    float* p = Tensor(x).as<float>();
    const float values[] = {1e4f, -1e4f, 0, NAN, 1, 2};
    std::copy(values, values + 6, p);
    run.k.cross_entropy(run.s, {.nll = nll,
                                .logits = x,
                                .targets = Array::ints({2}, {1, 1}),
                                .scalars = scalars,
                                .spec = {.grad = true}});
    EXPECT_NEAR(Tensor(nll).as<float>()[0], 2e4f, 1);
    EXPECT_FLOAT_EQ(p[0], 1);
    EXPECT_FLOAT_EQ(p[1], -1);
    EXPECT_TRUE(std::isnan(Tensor(nll).as<float>()[1])) << "a NaN must not be hidden";
  }
}

TEST(CpuKernels, SumSquares) {
  for (DType d : dtypes)
    for (int64_t n : {1, 63, 5000, 70001}) {
      const Array x = random({n}, d);
      check(
          "sum_squares", d,
          [&](const Runner& r) {
            Array out = r.sums({1}), parts = r.sums({64});
            r.k.sum_squares(r.s, out, parts, x);
            return outputs(std::move(out));
          },
          1e-6);
    }
}

UpdateState gated(const Runner& r, float squares, float loss, const Scalars& sc,
                  UpdateState start) {
  const Array state = Array::of(start), scalars = Array::of(sc);
  const Array sq = Array({1}, {squares}).as(r.acc), l = Array({1}, {loss}).as(r.acc);
  r.k.gate_update(r.s, state, sq, l, scalars);
  return state.to<UpdateState>();
}

TEST(CpuKernels, GateUpdate) {
  const UpdateState start{.good_steps = 4, .skipped = 2, .streak = 1};
  for (Isa isa : usable_isas()) {
    const Runner r = runner_of(isa, 1, DType::f32);
    UpdateState s = gated(r, 16, 2.5f, {.clip = 1, .loss_scale = 2}, start);
    EXPECT_FLOAT_EQ(s.grad_norm, 2);
    EXPECT_FLOAT_EQ(s.grad_scale, 1 / (2 + 1e-6f) / 2);
    EXPECT_EQ(s.good_steps, 5);
    EXPECT_EQ(s.skip, 0);
    EXPECT_EQ(s.streak, 0);
    EXPECT_EQ(s.skipped, 2);
    EXPECT_EQ(s.loss, 2.5f);
    EXPECT_EQ(gated(r, 0.25f, 1, {.clip = 1}, start).grad_scale, 1);
    EXPECT_EQ(gated(r, 100, 1, {.clip = 0}, start).grad_scale, 1);
    for (auto [squares, loss] : {std::pair{NAN, 1.0f}, std::pair{1.0f, NAN},
                                 std::pair{INFINITY, 1.0f}, std::pair{1.0f, -INFINITY}}) {
      s = gated(r, squares, loss, {.clip = 1}, start);
      EXPECT_EQ(s.skip, 1);
      EXPECT_EQ(s.grad_scale, 0);
      EXPECT_EQ(s.good_steps, 4);
      EXPECT_EQ(s.skipped, 3);
      EXPECT_EQ(s.streak, 2);
    }
  }
}

// Every rule over odd sizes, with each slot in each dtype it may have: the reference's numbers, and
// the same bits at any number of threads.
void check_rule(UpdateRule rule, int slots, DType d, int64_t n, bool with_master) {
  const Array scalars = Array::of(Scalars{.lr = 0.01f});
  const Array gate = Array::of(UpdateState{.grad_scale = 0.5f, .good_steps = 3});
  const Array skip = Array::of(UpdateState{.skip = 1});
  const RuleSpec spec{.rule = rule, .decay = 0.1f};
  const Array w = random({n}, d), exact = Array::random({n}), g = exact.as(DType::f32);
  for (int halves = 0; halves < 1 << slots; ++halves) {
    const auto dtype_of_slot = [&](int k) { return halves >> k & 1 ? DType::bf16 : DType::f32; };
    std::vector<Array> start;
    for (int k = 0; k < slots; ++k) {
      Array x = Array::random({n}, 0.1);
      // Momentum of the gradient's sign: where both cancel, a rounding decides the sign of Lion's
      // step. A second moment is positive.
      for (int64_t i = 0; i < n; ++i) x[i] = k == 0 ? std::copysign(x[i], exact[i]) : x[i] * x[i];
      start.push_back(x.as(dtype_of_slot(k)));
    }
    const auto args = [&](Tensor weight, Tensor master, std::vector<Array>& state, Tensor at) {
      UpdateArgs a{.weight = weight,
                   .master = master,
                   .slots = {},
                   .grad = g,
                   .gate = at,
                   .scalars = scalars};
      for (int k = 0; k < slots; ++k) a.slots[k] = state[size_t(k)];
      return a;
    };
    // Rounding a slot to bf16 may go either way where float and double differ.
    check(
        "update_weights", d,
        [&](const Runner& r) {
          Array w1 = r.in_place(w), master = with_master ? r.in_place_acc(w) : Array();
          std::vector<Array> state;
          for (int k = 0; k < slots; ++k)
            state.push_back(dtype_of_slot(k) == DType::bf16 ? start[size_t(k)].as(DType::bf16)
                                                            : r.in_place_acc(start[size_t(k)]));
          for (int step = 0; step < 2; ++step)
            r.k.update_weights(r.s, args(w1, master, state, gate), spec);
          Outputs all = outputs(std::move(w1), std::move(master));
          for (Array& s : state) all.push_back(r.acc == DType::f64 ? s.copy() : std::move(s));
          return all;
        },
        halves ? 8e-3 : 0);
    for (Isa isa : usable_isas()) {
      const Runner r = runner_of(isa, 2, d);
      const Array w1 = w.as(d);
      std::vector<Array> state;
      for (const Array& x : start) state.push_back(x.as(Tensor(x).dtype));
      r.k.update_weights(r.s, args(w1, none, state, skip), spec);
      EXPECT_TRUE(same_bytes(w, w1));
      for (int k = 0; k < slots; ++k)
        EXPECT_TRUE(same_bytes(start[size_t(k)], state[size_t(k)])) << k;
    }
  }
}

TEST(CpuKernels, UpdateWeights) {
  for (const UpdateRule rule : update_rules)
    by_rule(rule, [&]<class Rule>(Rule) {
      SCOPED_TRACE(Rule::name);
      for (DType d : dtypes)
        for (int64_t n : {1, 37, 40001})
          for (bool with_master : {false, true}) check_rule(rule, Rule::slots, d, n, with_master);
    });
}

}  // namespace
}  // namespace hearth::cpu_test
