// The reference kernels and their backend: forwards against values worked out by hand, backwards
// against central differences of the forwards in f64.
#include <set>

#include "sys/error.h"
#include "unit/reference_array.h"

namespace hearth::reference {
namespace {

const Act acts[] = {Act::none,   Act::gelu_tanh, Act::gelu_erf, Act::relu2,
                    Act::swiglu, Act::geglu,     Act::reglu,    Act::geglu_tanh};

TEST(Reference, HasEveryKernel) {
  const auto* entry = reinterpret_cast<void* const*>(&ops);
  // The host samples on a CPU, fused norms, sums and GLUs are a GPU's, and initial values come from
  // draw(), which is their definition.
  const std::set<size_t> absent = {
      offsetof(Kernels, sample),         offsetof(Kernels, norm_gemm), offsetof(Kernels, gemm_sums),
      offsetof(Kernels, norm_bwd_sums),  offsetof(Kernels, gemm_glu),  offsetof(Kernels, draw),
      offsetof(Kernels, norm_gemm_takes)};
  for (size_t i = 0; i < sizeof ops / sizeof *entry; ++i)
    EXPECT_EQ(entry[i] == nullptr, absent.contains(i * sizeof *entry)) << i;
}

TEST(Reference, BackendHasZeroedAlignedMemory) {
  const auto backend = make_reference_backend();
  Buffer buffer(*backend, 1000, "a test");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(int(buffer.data()[i]), 0);
  const int64_t sent = 0x123456789abcdef;
  int64_t got = 0;
  backend->upload(buffer.data(), &sent, 8);
  backend->download(&got, buffer.data(), 8);
  EXPECT_EQ(got, sent);
  EXPECT_GT(backend->free_bytes(), 0);
  try {
    backend->allocate(int64_t(1) << 60, "the moon");
    FAIL() << "2^60 bytes were found";
  } catch (const Error& e) { EXPECT_NE(std::string(e.what()).find("the moon"), std::string::npos); }
}

TEST(Reference, CopyRoundsToTheNearest) {
  const Array x(Shape{4}, {1.0, 1 + 0x1p-8, 1 + 0x3p-8, -0.1});
  expect_near(x.as(DType::bf16).copy(), {1, 1, 1 + 0x1p-6, -0.10009765625}, 0);
  expect_near(x.as(DType::f16).copy(), {1, 1 + 0x1p-8, 1 + 0x3p-8, -0.0999755859375}, 0);
  expect_near(x.as(DType::f32).copy(), {1, 1 + 0x1p-8, 1 + 0x3p-8, double(-0.1f)}, 0);
  EXPECT_THROW(ops.copy(stream, {.y = Array(Shape{4}, DType::i32), .x = x}), Error);
}

TEST(Reference, GemmByHand) {
  const Array a(Shape{2, 2}, {1, 2, 3, 4}), b(Shape{2, 2}, {5, 6, 7, 8});
  const Array bias(Shape{2}, {-30, 1}), c(Shape{2, 2}), aux(Shape{2, 2});
  ops.gemm(stream, {.c = c,
                    .aux = aux,
                    .a = a,
                    .b = b,
                    .bias = bias,
                    .prior = b,
                    .spec = {.alpha = 0.5f, .act = Act::relu2}});
  expect_near(aux, {-11, 23, 13, 51});
  expect_near(c, {5, 6 + 264.5, 7 + 84.5, 8 + 1300.5});
  ops.gemm(stream, {.c = c, .a = a, .b = b, .spec = {.ta = true, .tb = true}});
  expect_near(c, {1 * 5 + 3 * 6, 1 * 7 + 3 * 8, 2 * 5 + 4 * 6, 2 * 7 + 4 * 8});
  ops.gemm(stream, {.c = c, .a = a, .b = b, .prior = c});  // onto itself
  expect_near(c, {23 + 19, 31 + 22, 34 + 43, 46 + 50});
}

TEST(Reference, GemmGradients) {
  const int64_t M = 3, N = 4, K = 5, P = 2;
  for (bool ta : {false, true})
    for (bool tb : {false, true})
      for (Act act : {Act::none, Act::gelu_tanh, Act::gelu_erf, Act::relu2}) {
        SCOPED_TRACE(fmt::format("ta {} tb {} act {}", ta, tb, int(act)));
        const Array a = Array::random(ta ? Shape{K, M} : Shape{M, K});
        const Array b = Array::random(tb ? Shape{N, K} : Shape{K, N});
        const Array bias = Array::random({N}), prior = Array::random({M, N});
        const Array w = Array::random({N, P}), dy = Array::random({M, P});
        const Array h({M, N}), aux({M, N}), y({M, P});
        const float alpha = 0.75f;
        const auto loss = [&] {
          ops.gemm(stream, {.c = h,
                            .aux = aux,
                            .a = a,
                            .b = b,
                            .bias = bias,
                            .prior = prior,
                            .spec = {.ta = ta, .tb = tb, .alpha = alpha, .act = act}});
          ops.gemm(stream, {.c = y, .a = h, .b = w});
          return inner(y, dy);
        };
        loss();
        const Array dprior({M, N}), dz({M, N}), da(Tensor(a).shape), db(Tensor(b).shape);
        const Array dbias({N}), dw({N, P});
        ops.gemm(stream, {.c = dprior, .a = dy, .b = w, .spec = {.tb = true}});
        ops.gemm(stream, {.c = dz,
                          .aux = aux,
                          .a = dy,
                          .b = w,
                          .spec = {.tb = true, .alpha = alpha, .act = act, .act_slope = true}});
        if (ta)
          ops.gemm(stream, {.c = da, .a = b, .b = dz, .spec = {.ta = tb, .tb = true}});
        else
          ops.gemm(stream, {.c = da, .a = dz, .b = b, .spec = {.tb = !tb}});
        if (tb)
          ops.gemm(stream, {.c = db, .a = dz, .b = a, .spec = {.ta = true, .tb = ta}});
        else
          ops.gemm(stream, {.c = db, .a = a, .b = dz, .spec = {.ta = !ta}});
        ops.gemm(stream, {.c = dw, .a = h, .b = dy, .spec = {.ta = true}});
        ops.column_sum(stream, {.out = dbias, .parts = none, .x = dz, .alpha = 1, .add = false});
        expect_gradient("a", a, da, loss);
        expect_gradient("b", b, db, loss);
        expect_gradient("bias", bias, dbias, loss);
        expect_gradient("prior", prior, dprior, loss);
        expect_gradient("w", w, dw, loss);
      }
}

TEST(Reference, ColumnSumAddAndSumSquares) {
  const Array x(Shape{3, 2}, {1, 2, 3, 4, 5, 6}), out(Shape{2}, {100, 200}), y({3, 2}), s({1});
  ops.column_sum(stream, {.out = out, .parts = none, .x = x, .alpha = 2, .add = true});
  expect_near(out, {118, 224});
  ops.column_sum(stream, {.out = out, .parts = none, .x = x, .alpha = 2, .add = false});
  expect_near(out, {18, 24});
  ops.add(stream, {.y = y, .a = x, .b = x, .scale = -0.5f});
  expect_near(y, {0.5, 1, 1.5, 2, 2.5, 3});
  ops.add(stream, {.y = y, .b = y, .scale = 2});
  expect_near(y, {1, 2, 3, 4, 5, 6});
  ops.sum_squares(stream, {.out = s, .parts = none, .x = x});
  expect_near(s, {91});
}

TEST(Reference, EmbedGradients) {
  const Array ids = Array::ints({2, 3}, {4, 0, 4, 2, 1, 0});
  const Array positions = Array::ints({2, 3}, {0, 1, 2, 0, 1, 0});
  const Array w = Array::random({5, 4}), pos_w = Array::random({3, 4});
  const Array dy = Array::random({2, 3, 4}), y({2, 3, 4}), dw = Array::random({5, 4});
  const Array dpos_w = Array::random({3, 4}), before = dw.copy();
  const auto loss = [&] {
    ops.embed(stream, {.y = y, .ids = ids, .w = w, .positions = positions, .pos_w = pos_w});
    return inner(y, dy);
  };
  loss();
  for (int c = 0; c < 4; ++c) EXPECT_EQ(y[2 * 4 + c], w[4 * 4 + c] + pos_w[2 * 4 + c]);
  ops.embed_bwd(stream, {.dw = dw, .dpos_w = dpos_w, .dy = dy, .ids = ids, .positions = positions});
  expect_gradient("w", w, dw, loss);
  expect_gradient("pos_w", pos_w, dpos_w, loss);
  const Array added = before.copy();
  ops.embed_bwd(stream, {.dw = added,
                         .dpos_w = dpos_w,
                         .dy = dy,
                         .ids = ids,
                         .positions = positions,
                         .spec = {.add = true}});
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(added[i], before[i] + dw[i], 1e-15);
  ops.embed(stream, {.y = y, .ids = ids, .w = w});
  for (int c = 0; c < 4; ++c) EXPECT_EQ(y[c], w[4 * 4 + c]);
}

TEST(Reference, NormByHand) {
  const Array x(Shape{1, 2}, {1, 2}), r(Shape{1, 2}, {2, 5}), gain(Shape{2}, {10, 100});
  const Array bias(Shape{2}, {1, 2}), y({1, 2}), sum({1, 2}), stat({1, 2});
  ops.norm(stream, {.y = y,
                    .sum = sum,
                    .stat = stat,
                    .x = x,
                    .residual = r,
                    .gain = gain,
                    .bias = bias,
                    .spec = {.kind = Norm::layer, .eps = 0}});
  expect_near(sum, {3, 7});
  expect_near(stat, {5, 0.5});
  expect_near(y, {-9, 102});
  ops.norm(stream, {.y = y, .stat = stat, .x = x, .spec = {.kind = Norm::rms, .eps = 1.5f}});
  expect_near(stat, {0, 0.5});
  expect_near(y, {0.5, 1});
}

TEST(Reference, NormGradients) {
  for (Norm kind : {Norm::layer, Norm::rms})
    for (int with = 0; with < 8; ++with) {
      SCOPED_TRACE(fmt::format("kind {} with {}", int(kind), with));
      const Shape shape = with % 2 ? Shape{2, 3, 5} : Shape{4, 7};
      const int64_t C = shape[-1], R = shape.numel() / C;
      const bool residual = with & 4;
      const Array x = Array::random(shape), y(shape), sum(shape), stat({R, 2});
      const Array gain = with & 1 ? Array::random({C}) : Array();
      const Array bias = with & 2 ? Array::random({C}) : Array();
      const Array r = residual ? Array::random(shape) : Array();
      const Array dy = Array::random(shape), dsum = Array::random(shape);
      const NormSpec spec{.kind = kind, .eps = 1e-3f};
      const auto loss = [&] {
        ops.norm(stream, {.y = y,
                          .sum = sum,
                          .stat = stat,
                          .x = x,
                          .residual = r,
                          .gain = gain,
                          .bias = bias,
                          .spec = spec});
        return inner(y, dy) + (residual ? inner(sum, dsum) : 0);
      };
      loss();
      const Array dx = residual ? dsum.copy() : Array(shape);  // the prior, overwritten
      const Array dgain = with & 1 ? Array({C}) : Array(), dbias = with & 2 ? Array({C}) : Array();
      const Tensor prior = residual ? Tensor(dx) : none, normed = residual ? sum : x;
      ops.norm_bwd(stream, {.dx = dx,
                            .dgain = dgain,
                            .dbias = dbias,
                            .dy = dy,
                            .x = normed,
                            .gain = gain,
                            .stat = stat,
                            .prior = prior,
                            .spec = spec});
      expect_gradient("x", x, dx, loss);
      if (residual) expect_gradient("r", r, dx, loss);
      if (with & 1) expect_gradient("gain", gain, dgain, loss);
      if (with & 2) expect_gradient("bias", bias, dbias, loss);
      if (with == 3) {
        const Array twice = dgain.copy();
        loss();
        ops.norm_bwd(stream, {.dx = dx,
                              .dgain = twice,
                              .dbias = dbias,
                              .dy = dy,
                              .x = x,
                              .gain = gain,
                              .stat = stat,
                              .spec = {.kind = kind, .eps = 1e-3f, .add = true}});
        for (int64_t c = 0; c < C; ++c) EXPECT_NEAR(twice[c], 2 * dgain[c], 1e-12);
      }
    }
}

TEST(Reference, ActivationGradients) {
  for (Act act : acts) {
    SCOPED_TRACE(int(act));
    const Shape in{2, 3, is_glu(act) ? 10 : 5}, out{2, 3, 5};
    const Array x = Array::random(in, 3), dy = Array::random(out), y(out), dx(in);
    const auto loss = [&] {
      ops.activation(stream, {.y = y, .x = x, .act = act});
      return inner(y, dy);
    };
    ops.activation_bwd(stream, {.dx = dx, .dy = dy, .x = x, .act = act});
    expect_gradient("x", x, dx, loss);
  }
}

TEST(Reference, ActivationByHand) {
  const Array x(Shape{1, 2}, {1.0, -3.0}), plain({1, 2}), glu({1, 1});
  const auto value = [&](Act act) {
    ops.activation(stream, {.y = is_glu(act) ? glu : plain, .x = x, .act = act});
    return (is_glu(act) ? glu : plain)[0];
  };
  EXPECT_EQ(value(Act::none), 1);
  EXPECT_EQ(value(Act::relu2), 1);
  EXPECT_EQ(plain[1], 0);
  EXPECT_NEAR(value(Act::gelu_erf), 0.8413447460685429, 1e-12);
  EXPECT_NEAR(value(Act::gelu_tanh), 0.8411919906082768, 1e-12);
  EXPECT_NEAR(value(Act::swiglu), -3 * 0.7310585786300049, 1e-12);
  EXPECT_NEAR(value(Act::geglu), -3 * 0.8413447460685429, 1e-12);
  EXPECT_NEAR(value(Act::geglu_tanh), -3 * 0.8411919906082768, 1e-12);
  EXPECT_EQ(value(Act::reglu), -3);
}

TEST(Reference, OutputGateGradients) {
  for (const Shape& gate : {Shape{2, 3, 2, 4}, Shape{2, 3, 2}}) {
    const Shape shape{2, 3, 2, 4};
    const Array x = Array::random(shape), g = Array::random(gate), dy = Array::random(shape);
    const Array y(shape), dx(shape), dg(gate);
    const auto loss = [&] {
      ops.output_gate(stream, {.y = y, .x = x, .g = g});
      return inner(y, dy);
    };
    loss();
    const int64_t last = gate.numel() - 1;
    EXPECT_NEAR(y[47], x[47] / (1 + std::exp(-g[last])), 1e-12);
    ops.output_gate_bwd(stream, {.dx = dx, .dg = dg, .dy = dy, .x = x, .g = g});
    expect_gradient("x", x, dx, loss);
    expect_gradient("g", g, dg, loss);
  }
}

TEST(Reference, DropoutIsItsOwnBackward) {
  const Scalars s{.seed_lo = 1, .seed_hi = 2, .step = 3, .micro = 4};
  const Array x = Array::random({4, 50}), dy = Array::random({4, 50}), y({4, 50}), dx({4, 50});
  const auto loss = [&] {
    ops.dropout(stream, {.y = y, .x = x, .scalars = Array::of(s), .p = 0.5f, .salt = 11});
    return inner(y, dy);
  };
  loss();
  int kept = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const bool keep = random_word(s, 11, uint64_t(i)) >= 1u << 31;
    kept += keep;
    EXPECT_EQ(y[i], keep ? 2 * x[i] : 0);
  }
  EXPECT_NEAR(kept, 100, 35);
  ops.dropout(stream, {.y = dx, .x = dy, .scalars = Array::of(s), .p = 0.5f, .salt = 11});
  expect_gradient("x", x, dx, loss);
}

TEST(Reference, CrossEntropyGradients) {
  const int64_t N = 4, V = 7;
  const Array targets = Array::ints({N}, {3, -100, 0, 6});
  const Array scalars = Array::of(Scalars{.inv_targets = 0.25f, .loss_scale = 8});
  for (float softcap : {0.f, 1.5f}) {
    const Array x = Array::random({N, V}, 3), nll({N}), mean({1}), dx = x.copy();
    const auto loss = [&] {
      ops.cross_entropy(stream, {.nll = nll,
                                 .logits = x,
                                 .targets = targets,
                                 .scalars = scalars,
                                 .spec = {.softcap = softcap}});
      ops.mean_loss(stream, {.loss = mean, .nll = nll, .scalars = scalars, .add = false});
      return 8 * mean[0];
    };
    ops.cross_entropy(stream, {.nll = nll,
                               .logits = dx,
                               .targets = targets,
                               .scalars = scalars,
                               .spec = {.softcap = softcap, .grad = true}});
    EXPECT_EQ(nll[1], 0);
    for (int64_t j = 0; j < V; ++j) EXPECT_EQ(dx[V + j], 0);
    expect_gradient("logits", x, dx, loss);
  }
}

TEST(Reference, CrossEntropyByHand) {
  const Array targets = Array::ints({2}, {1, 0}), nll({2}), loss(Shape{1}, {10.0});
  const Array x(Shape{2, 3}, {2, 2, 2, 0, 1e4, 1e4});
  ops.cross_entropy(stream, {.nll = nll, .logits = x, .targets = targets});
  expect_near(nll, {std::log(3.0), 1e4 + std::log(2.0)});
  ops.mean_loss(
      stream,
      {.loss = loss, .nll = nll, .scalars = Array::of(Scalars{.inv_targets = 0.5f}), .add = true});
  expect_near(loss, {10 + (std::log(3.0) + 1e4 + std::log(2.0)) / 2});
  ops.cross_entropy(stream, {.nll = nll, .logits = x, .targets = targets, .spec = {.softcap = 1}});
  EXPECT_NEAR(nll[1], std::log(1 + 2 * std::exp(1.0)), 1e-12);
}

TEST(Reference, GateUpdateClipsAndSkips) {
  const Array state = Array::of(UpdateState{.good_steps = 4, .skipped = 2, .streak = 1});
  const auto gate = [&](double squares, double loss, Scalars s) {
    ops.gate_update(stream, {.state = state,
                             .squares = Array(Shape{1}, {squares}),
                             .loss = Array(Shape{1}, {loss}),
                             .scalars = Array::of(s)});
    return state.to<UpdateState>();
  };
  UpdateState u = gate(16, 3, {.clip = 5});
  EXPECT_EQ(u.grad_norm, 4);
  EXPECT_EQ(u.loss, 3);
  EXPECT_EQ(u.grad_scale, 1);
  EXPECT_EQ(u.good_steps, 5);
  EXPECT_EQ(u.skip, 0);
  EXPECT_EQ(u.streak, 0);
  EXPECT_EQ(u.skipped, 2);
  u = gate(16 * 64, 3, {.clip = 1, .loss_scale = 8});
  EXPECT_EQ(u.grad_norm, 4);
  EXPECT_NEAR(u.grad_scale, 1 / (4 + 1e-6) / 8, 1e-8);
  EXPECT_EQ(gate(16, 3, {.clip = 0}).grad_scale, 1);
  EXPECT_EQ(gate(NAN, 3, {}).skip, 1);
  u = gate(1, INFINITY, {});
  EXPECT_EQ(u.skip, 1);
  EXPECT_EQ(u.grad_scale, 0);
  EXPECT_EQ(u.streak, 2);
  EXPECT_EQ(u.skipped, 4);
  EXPECT_EQ(u.good_steps, 7);
  u = gate(INFINITY, 3, {});
  EXPECT_EQ(u.streak, 3);
  EXPECT_EQ(gate(1, 1, {}).streak, 0);
}

TEST(Reference, AdamWByHand) {
  const RuleSpec spec{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 0.125f, .decay = 0.5f};
  const Array scalars = Array::of(Scalars{.lr = 0.1f});
  const Array w(Shape{1}, DType::bf16), master(Shape{1}, {1.0}), m({1}), v({1});
  const auto step = [&](double g, UpdateState u) {
    const Array grad(Shape{1}, {g}), gate = Array::of(u);
    ops.update_weights(stream, UpdateArgs{.weight = w,
                                          .master = master,
                                          .slots = {m, v},
                                          .grad = grad,
                                          .gate = gate,
                                          .scalars = scalars,
                                          .spec = spec});
  };
  step(1, {.grad_scale = 0.5f, .good_steps = 1});  // the gradient used is 0.5
  EXPECT_NEAR(m[0], 0.05, 1e-7);
  EXPECT_NEAR(v[0], 0.0125, 1e-7);
  EXPECT_NEAR(master[0], 0.95 - 0.1 * 0.5 / (0.5 + 0.125), 1e-7);  // 0.87
  step(NAN, {.good_steps = 1, .skip = 1});
  EXPECT_NEAR(master[0], 0.87, 1e-7);
  EXPECT_NEAR(m[0], 0.05, 1e-7);
  step(-1, {.grad_scale = 1, .good_steps = 2});
  EXPECT_NEAR(m[0], -0.055, 1e-7);
  EXPECT_NEAR(v[0], 0.061875, 1e-7);
  // m / 0.19 = -0.2894737, sqrt(v / 0.0975) = 0.7966278
  EXPECT_NEAR(master[0], 0.87 * 0.95 + 0.1 * 0.2894737 / (0.7966278 + 0.125), 1e-6);
  expect_same_bytes(w, master.as(DType::bf16));
}

TEST(Reference, AdamWWithoutMasterUpdatesTheWeight) {
  const Array w(Shape{2}, {1.0, -2.0}), m({2}), v({2}), g(Shape{2}, {0.25, 0.0});
  const Array gate = Array::of(UpdateState{.grad_scale = 1, .good_steps = 1});
  const Array scalars = Array::of(Scalars{.lr = 0.5f});
  ops.update_weights(stream, UpdateArgs{.weight = w,
                                        .slots = {m, v},
                                        .grad = g,
                                        .gate = gate,
                                        .scalars = scalars,
                                        .spec = {.eps = 0.25f, .decay = 0.1f}});
  expect_near(w, {0.95 - 0.5 * 0.25 / (0.25 + 0.25), -1.9}, 1e-7);
}

}  // namespace
}  // namespace hearth::reference
