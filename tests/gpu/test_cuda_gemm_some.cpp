// Products of 17 to 64 rows on the card against sums in double of the same inputs: every epilogue,
// sizes that fill no tile, the same bits every time and however the launches overlap.
#include <fmt/format.h>

#include "held.h"

namespace hearth::cases {
namespace {

using test::card;
using test::Held;

struct Size {
  int64_t M, N, K;
};

// What becomes of the sums.
struct Finish {
  Act act = Act::none;
  float alpha = 1;
  bool bias = false, prior = false, in_place = false;
  bool aux = false, wide = false;  // keeps the argument of act; writes f32
};

const Finish finishes[] = {
    {},
    {.bias = true},
    {.alpha = 0.5f, .bias = true, .prior = true},
    {.bias = true, .prior = true, .in_place = true},
    {.act = Act::gelu_tanh, .bias = true},
    {.act = Act::gelu_tanh, .bias = true, .aux = true},
    {.act = Act::gelu_erf, .aux = true},
    {.act = Act::relu2, .alpha = 2, .bias = true, .prior = true, .in_place = true, .aux = true},
    {.act = Act::gelu_tanh, .bias = true, .prior = true, .in_place = true, .wide = true},
    {.act = Act::relu2, .bias = true, .aux = true, .wide = true}};

Numbers doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

double tolerance_of(DType d) {
  for (const Tolerance& t : test::card_tolerances)
    if (t.dtype == d) return t.value;
  return 0;
}

// The operands of a product on a backend.
struct Operands {
  Operands(Backend& b, const Size& s, DType d, DType out)
      : a(b, {s.M, s.K}, d),
        w(b, {s.N, s.K}, d),
        bias(b, {s.N}, d),
        prior(b, {s.M, s.N}, out),
        c(b, {s.M, s.N}, out),
        aux(b, {s.M, s.N}, out) {
    std::mt19937 random{uint32_t(s.M * s.N + s.K)};
    for (Held* t : {&a, &w, &bias, &prior}) {
      std::vector<float> x = test::rounded(size_t(t->t.numel()), d, random);
      for (float& v : x) v /= t == &w ? 16 : 1;  // relu2 of f16 stays finite
      t->fill(x);
    }
  }
  Held a, w, bias, prior, c, aux;
};

// a wᵀ in double, (M, N).
Numbers sums(const Numbers& a, const Numbers& w, const Size& s) {
  Numbers c;
  for (int64_t m = 0; m < s.M; ++m)
    for (int64_t n = 0; n < s.N; ++n) {
      const double *x = &a[size_t(m * s.K)], *y = &w[size_t(n * s.K)];
      double four[4] = {};  // K is a multiple of 8
      for (int64_t k = 0; k < s.K; k += 4)
        for (int i = 0; i < 4; ++i) four[i] += x[k + i] * y[k + i];
      c.push_back(four[0] + four[1] + four[2] + four[3]);
    }
  return c;
}

struct Wanted {
  Numbers c, aux;
};

Wanted finished(Operands& o, const Numbers& sum, const Finish& f, DType out) {
  const Numbers bias = doubles(o.bias.read()), prior = doubles(o.prior.read());
  Wanted r{sum, sum};
  for (size_t i = 0; i < sum.size(); ++i) {
    double x = sum[i] + (f.bias ? bias[i % bias.size()] : 0);
    if (f.act != Act::none) x = r.aux[i] = rounded(x, out);
    r.c[i] = f.alpha * activate(f.act, x).y + (f.prior ? prior[i] : 0);
  }
  return r;
}

// What the card makes of the operands.
Wanted made(Backend& b, Operands& o, const Finish& f) {
  if (f.in_place) o.c.fill(o.prior.read());
  const Tensor prior = !f.prior ? Tensor{} : f.in_place ? o.c.t : o.prior.t;
  const Tensor bias = f.bias ? o.bias.t : Tensor{}, aux = f.aux ? o.aux.t : Tensor{};
  b.kernels().gemm(b.stream(),
                   {.c = o.c.t,
                    .aux = aux,
                    .a = o.a.t,
                    .b = o.w.t,
                    .bias = bias,
                    .prior = prior,
                    .spec = {.tb = true, .alpha = f.alpha, .act = f.act, .weight = true}});
  return {doubles(o.c.read()), doubles(o.aux.read())};
}

const Size sizes[] = {{17, 32, 64},   {31, 40, 72},    {32, 257, 768},  {33, 96, 96},
                      {48, 8, 768},   {64, 77, 200},   {18, 130, 8},    {17, 40, 1600},
                      {33, 96, 4096}, {64, 96, 3080},  {64, 768, 3072}, {64, 2304, 768},
                      {64, 768, 768}, {50, 3072, 768}, {40, 64, 1024}};

TEST(CudaGemm, SomeRows) {
  HEARTH_NEEDS_A_CARD();
  for (const Size& s : sizes)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Operands plain(card(), s, dtype, dtype), wide(card(), s, dtype, DType::f32);
      const Numbers sum = sums(doubles(plain.a.read()), doubles(plain.w.read()), s);
      for (const Finish& f : finishes) {
        SCOPED_TRACE(
            fmt::format("{}x{}x{} {} finish {}", s.M, s.N, s.K, to_string(dtype), &f - finishes));
        const DType out = f.wide ? DType::f32 : dtype;
        Operands& o = f.wide ? wide : plain;
        const Wanted want = finished(o, sum, f, out), got = made(card(), o, f);
        // Wide ones show what the matrix units drop of long sums.
        const double tolerance = f.wide ? 1e-4 : tolerance_of(dtype);
        EXPECT_LT(error_of(got.c, want.c), tolerance);
        if (f.aux) { EXPECT_LT(error_of(got.aux, want.aux), tolerance); }
        const Wanted again = made(card(), o, f);
        EXPECT_TRUE(again.c == got.c && again.aux == got.aux) << "other bits";
      }
    }
}

// A backend that was told not to have them makes the same product, by another kernel.
TEST(CudaGemm, SomeRowsAreAChoice) {
  HEARTH_NEEDS_A_CARD();
  const auto without = make_cuda_backend({.some_rows = false});
  const Size s{64, 768, 768};
  const Finish f{.bias = true, .prior = true};
  Operands ours(card(), s, DType::bf16, DType::bf16), theirs(*without, s, DType::bf16, DType::bf16);
  EXPECT_LT(error_of(made(card(), ours, f).c, made(*without, theirs, f).c),
            tolerance_of(DType::bf16));
  if (cuda_card(0).major != 9) return;
  for (const Size& s : sizes) {
    SCOPED_TRACE(fmt::format("{}x{}x{}", s.M, s.N, s.K));
    if (s.M * s.N * s.K < 1'000'000) continue;  // so many sums in two orders differ somewhere
    Operands a(card(), s, DType::bf16, DType::f32), b(*without, s, DType::bf16, DType::f32);
    EXPECT_FALSE(made(card(), a, {.wide = true}).c == made(*without, b, {.wide = true}).c);
  }
}

// A card of which a block may ask for less memory has other limits, and the same answers.
// K in more parts, or left to cuBLASLt, where a block has less memory.
TEST(CudaGemm, SomeRowsInLessMemory) {
  HEARTH_NEEDS_A_CARD();
  const auto small = make_cuda_backend({.shared_limit = 99 << 10});
  Backend& b = *small;
  for (const Size& s :
       {Size{64, 96, 3080}, Size{33, 96, 4096}, Size{64, 130, 2048}, Size{64, 96, 768}}) {
    SCOPED_TRACE(fmt::format("{}x{}x{}", s.M, s.N, s.K));
    Operands o(b, s, DType::bf16, DType::bf16);
    const Finish f{.bias = true, .prior = true, .in_place = true};
    const Numbers sum = sums(doubles(o.a.read()), doubles(o.w.read()), s);
    EXPECT_LT(error_of(made(b, o, f).c, finished(o, sum, f, DType::bf16).c),
              tolerance_of(DType::bf16));
  }
}

// A few layers as decoding runs them, each kernel fetching its weights while the one ahead still
// works. Waiting for each changes nothing.
Numbers layers(Backend& b, int64_t rows, bool waits) {
  constexpr int64_t C = 768, H = 3072;
  constexpr DType d = DType::bf16;
  const NormSpec norm{.kind = Norm::layer, .eps = 1e-5f};
  Held x(b, {rows, C}, d), gain(b, {C}, d), shift(b, {C}, d), qkv(b, {rows, 3 * C}, d);
  Held y(b, {rows, C}, d), h(b, {rows, H}, d), wide(b, {3 * C, C}, d), out(b, {C, C}, d),
      up(b, {H, C}, d);
  Held down(b, {C, H}, d), bias(b, {H}, d);
  std::mt19937 random{3};
  for (Held* t : {&x, &gain, &shift, &wide, &out, &up, &down, &bias}) {
    std::vector<float> v = test::rounded(size_t(t->t.numel()), d, random);
    for (float& e : v) e /= t == &x || t == &gain ? 1 : 32;
    t->fill(v);
  }
  b.synchronize();
  const Kernels& k = b.kernels();
  Stream& s = b.stream();
  const auto done = [&] {
    if (waits) b.synchronize();
  };
  const auto first = [](const Held& t, int64_t n) { return Tensor{t.t.data, {n}, d}; };
  const GemmSpec plain{.tb = true, .weight = true};
  const Tensor attended{qkv.t.data, {rows, C}, d};  // any rows of that width do
  for (int layer = 0; layer < 24; ++layer) {
    k.norm(s, {.y = y.t, .x = x.t, .gain = gain.t, .bias = shift.t, .spec = norm});
    done();
    k.gemm(s, {.c = qkv.t, .a = y.t, .b = wide.t, .bias = first(bias, 3 * C), .spec = plain});
    done();
    k.gemm(
        s,
        {.c = x.t, .a = attended, .b = out.t, .bias = first(bias, C), .prior = x.t, .spec = plain});
    done();
    k.norm(s, {.y = y.t, .x = x.t, .gain = gain.t, .bias = shift.t, .spec = norm});
    done();
    k.gemm(s, {.c = h.t,
               .a = y.t,
               .b = up.t,
               .bias = bias.t,
               .spec = {.tb = true, .act = Act::gelu_tanh, .weight = true}});
    done();
    k.gemm(s,
           {.c = x.t, .a = h.t, .b = down.t, .bias = first(bias, C), .prior = x.t, .spec = plain});
    done();
  }
  return doubles(x.read());
}

TEST(CudaGemm, SomeRowsMayOverlap) {
  HEARTH_NEEDS_A_CARD();
  for (const int64_t rows : {64, 32, 17}) {
    SCOPED_TRACE(rows);
    const Numbers want = layers(card(), rows, true);
    double size = 0;
    for (double v : want) size += std::abs(v);
    EXPECT_TRUE(std::isfinite(size) && size > 0);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(layers(card(), rows, false) == want) << i;
  }
}

}  // namespace
}  // namespace hearth::cases
