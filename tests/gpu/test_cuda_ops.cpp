// Every op case on the card: values and gradients against the reference in double, the same bits
// twice, with and without graphs.
#include <fmt/format.h>

#include <iterator>
#include <set>

#include "cpu/reference/reference.h"
#include "held.h"

namespace hearth::cases {
namespace {

using test::card;
using test::card_tolerances;

class CudaOps : public testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override { HEARTH_NEEDS_A_CARD(); }
};

// 16-bit attention is for heads of a multiple of 8, and all of it for heads of up to 256.
bool has_kernel(const OpCase& c, const Dims& d, DType dtype) {
  if (!c.sees) return true;
  const int64_t V = c.v_width(d.D);
  return V <= 256 && (dtype == DType::f32 || (d.D % 8 == 0 && V % 8 == 0));
}

// The kernels of a card read q, k and v from one tensor.
std::vector<OpCase> on_a_card(std::vector<OpCase> cases) {
  std::erase_if(cases, [](const OpCase& c) { return !c.packed; });
  return cases;
}

std::vector<Named> everything(CaseRun& run) {
  run.run();
  std::vector<Named> all = run.outputs();
  for (Named& g : run.gradients()) all.push_back(std::move(g));
  return all;
}

void expect_same_bits(const std::vector<Named>& a, const std::vector<Named>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i].values == b[i].values)
        << a[i].name << ", off by " << error_of(a[i].values, b[i].values);
}

TEST_P(CudaOps, ValuesAndGradients) {
  const auto reference = make_reference_backend();
  std::set<DType> compared;
  for (const Dims& d : GetParam().small)
    for (const Tolerance& tolerance : card_tolerances) {
      if (!has_kernel(GetParam(), d, tolerance.dtype)) continue;
      compared.insert(tolerance.dtype);
      CaseRun want(*reference, DType::f64, GetParam(), d, tolerance.dtype);
      want.run();
      for (const bool hopper : {true, false}) {
        SCOPED_TRACE(fmt::format("{} hopper {} B {} T {} C {} N {} H {} D {} V {}",
                                 to_string(tolerance.dtype), hopper, d.B, d.T, d.C, d.N, d.H, d.D,
                                 d.V));
        CaseRun got(card(hopper), tolerance.dtype, GetParam(), d, tolerance.dtype);
        got.run();
        test::expect_close(got.outputs(), want.outputs(), tolerance.value);
        test::expect_close(with_numbers_joined(got.gradients()),
                           with_numbers_joined(want.gradients()), tolerance.gradient);
      }
    }
  EXPECT_EQ(compared.size(), std::size(card_tolerances))
      << "a dtype for which no size has a kernel";
}

TEST_P(CudaOps, SameBitsEveryTime) {
  std::vector<Dims> sizes{GetParam().small.back()};
  if (GetParam().sees) sizes.push_back(GetParam().large);  // many tiles, many blocks
  for (const Dims& d : sizes)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool hopper : {true, false}) {
        if (!has_kernel(GetParam(), d, dtype)) continue;
        SCOPED_TRACE(fmt::format("{} hopper {} T {}", to_string(dtype), hopper, d.T));
        CaseRun graph(card(hopper, true), dtype, GetParam(), d, dtype);
        CaseRun plain(card(hopper, false), dtype, GetParam(), d, dtype);
        const std::vector<Named> first = everything(graph);
        expect_same_bits(everything(graph), first);  // captured
        expect_same_bits(everything(graph), first);  // replayed
        expect_same_bits(everything(plain), first);
      }
}

class CudaAttentionOps : public CudaOps {};

// Head sizes have kernels of their own, and several blocks of keys add to one dQ.
TEST_P(CudaAttentionOps, AreRightAtEveryHeadSize) {
  const auto reference = make_reference_backend();
  for (const int64_t D : {32, 64, 96, 128, 192, 256}) {
    const Dims d{.B = 1, .T = 300, .H = 2, .D = D};
    for (const Tolerance& tolerance : card_tolerances) {
      if (!has_kernel(GetParam(), d, tolerance.dtype)) continue;
      CaseRun want(*reference, DType::f64, GetParam(), d, tolerance.dtype);
      want.run();
      for (const bool hopper : {true, false}) {
        SCOPED_TRACE(fmt::format("{} hopper {} D {}", to_string(tolerance.dtype), hopper, D));
        CaseRun got(card(hopper), tolerance.dtype, GetParam(), d, tolerance.dtype);
        const std::vector<Named> first = everything(got);
        test::expect_close(got.outputs(), want.outputs(), tolerance.value);
        test::expect_close(with_numbers_joined(got.gradients()),
                           with_numbers_joined(want.gradients()), tolerance.gradient);
        expect_same_bits(everything(got), first);
      }
    }
  }
}

// One shape with and without a scale: what was tuned for the first must not be used for the second.
TEST(CudaGemm, AScaledProductIsAnotherProduct) {
  HEARTH_NEEDS_A_CARD();
  const auto product = [](Backend& b, DType dtype, float scale) {
    const OpCase c{
        "scaled",
        [scale](Recorder& r) {
          const Var x = r.x("x", {2, 8, 64}), residual = r.x("residual", {2, 8, 64});
          r.output(linear(r.t, x, r.weight("w", {64, 64}),
                          {.bias = r.vector("b", 64), .residual = residual, .scale = scale}));
        },
        {},
        {}};
    CaseRun run(b, dtype, c, {}, DType::bf16);
    return everything(run);
  };
  const auto reference = make_reference_backend();
  for (const float scale : {1.0f, 0.5f, 1.0f})
    test::expect_close(product(card(), DType::bf16, scale), product(*reference, DType::f64, scale),
                       2.5e-2);
}

// Of products with the same shape: one overwrites its result, one adds to it in place, one adds
// another matrix. Two backends of a process meet them in another order and get the same bits.
TEST(CudaGemm, OrderOfProductsChangesNoBit) {
  HEARTH_NEEDS_A_CARD();
  enum class Adds : uint8_t { nothing, in_place, another };
  const auto product = [](Backend& b, int64_t N, Adds adds) {
    constexpr int64_t M = 328, K = 1912;
    std::mt19937 random(7);
    test::Held a(b, {M, K}, DType::f32), w(b, {N, K}, DType::f32);
    test::Held c(b, {M, N}, DType::f32), prior(b, {M, N}, DType::f32);
    for (test::Held* t : {&a, &w, &c, &prior})
      t->fill(test::rounded(size_t(t->t.numel()), DType::f32, random));
    const Tensor added = adds == Adds::nothing ? Tensor{} : adds == Adds::in_place ? c.t : prior.t;
    b.kernels().gemm(b.stream(),
                     {.c = c.t, .a = a.t, .b = w.t, .prior = added, .spec = {.tb = true}});
    return c.read();
  };
  const auto first = make_cuda_backend({}), second = make_cuda_backend({});
  for (int64_t N = 104; N < 1000; N += 56) {
    SCOPED_TRACE(N);
    product(*first, N, Adds::nothing);
    const std::vector<float> in_place = product(*first, N, Adds::in_place);
    const std::vector<float> another = product(*first, N, Adds::another);
    EXPECT_TRUE(product(*second, N, Adds::another) == another);
    EXPECT_TRUE(product(*second, N, Adds::in_place) == in_place);
  }
}

struct Product {
  int64_t M, N, K;
  Act act;
  bool joins, wide;  // adds to a prior at half scale; writes f32
};

std::vector<float> product(Backend& b, DType d, const Product& p, std::mt19937 random, DType from) {
  const DType out = p.wide ? DType::f32 : d;
  test::Held a(b, {p.M, p.K}, d), w(b, {p.N, p.K}, d), bias(b, {p.N}, d);
  test::Held c(b, {p.M, p.N}, out), prior(b, {p.M, p.N}, out);
  for (test::Held* t : {&a, &w, &bias, &prior})
    t->fill(test::rounded(size_t(t->t.numel()), from, random));
  b.kernels().gemm(b.stream(), {.c = c.t,
                                .a = a.t,
                                .b = w.t,
                                .bias = bias.t,
                                .prior = p.joins ? prior.t : Tensor{},
                                .spec = {.tb = true, .alpha = p.joins ? 0.5f : 1, .act = p.act}});
  return c.read();
}

// Up to sixteen rows take a kernel of our own: every epilogue, sizes that fill no tile.
// Blocks of half a tile and of whole ones, and more of them than run at once, which on Hopper are
// those of gemm_stream.
const std::pair<int64_t, int64_t> few_sizes[] = {{257, 40},   {64, 768},   {96, 3080},
                                                 {2304, 136}, {4300, 264}, {2200, 1608}};

TEST(CudaGemm, FewRows) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  for (const int64_t M : {1, 3, 8, 9, 16})
    for (const auto& [N, K] : few_sizes)
      for (const Act act : {Act::none, Act::gelu_tanh, Act::gelu_erf, Act::relu2})
        for (const DType dtype : {DType::bf16, DType::f16}) {
          SCOPED_TRACE(fmt::format("{}x{}x{} act {} {}", M, N, K, int(act), to_string(dtype)));
          const Product p{M, N, K, act, M % 2 == 1, M == 3};
          const std::mt19937 random{uint32_t(M * N)};
          const std::vector<float> want = product(*cpu, DType::f32, p, random, dtype);
          const std::vector<float> got = product(card(), dtype, p, random, dtype);
          EXPECT_LT(test::distance(got, want), dtype == DType::bf16 ? 8e-3 : 1e-3);
          EXPECT_TRUE(product(card(), dtype, p, random, dtype) == got) << "other bits";
        }
}

struct NormedProduct {
  int64_t M, N, K;
  Norm kind;
  bool gains, joins;
  float mean = 0;      // of the rows' elements, in their deviations
  bool weight = true;  // b is one
};

// The product of normed rows: by the joined kernel, or by one after the other.
std::vector<float> normed_product(Backend& b, DType d, const NormedProduct& p, std::mt19937 random,
                                  DType from, bool joined) {
  test::Held x(b, {p.M, p.K}, d), w(b, {p.N, p.K}, d), bias(b, {p.N}, d), prior(b, {p.M, p.N}, d);
  test::Held gain(b, {p.K}, d), shift(b, {p.K}, d), y(b, {p.M, p.K}, d), c(b, {p.M, p.N}, d);
  test::Held stat(b, {p.M, 2}, DType::f32);
  for (test::Held* t : {&x, &w, &bias, &prior, &gain, &shift}) {
    std::vector<float> v = test::rounded(size_t(t->t.numel()), from, random);
    for (float& e : v) e = t == &x ? float(rounded(e + p.mean, from)) : e;
    t->fill(v);
  }
  const Tensor g = p.gains ? gain.t : Tensor{};
  const Tensor s = p.gains && p.kind == Norm::layer ? shift.t : Tensor{};
  const Tensor before = p.joins ? prior.t : Tensor{};
  const NormSpec norm{.kind = p.kind, .eps = 1e-5f};
  const GemmSpec spec{.tb = true, .act = p.joins ? Act::none : Act::gelu_tanh, .weight = p.weight};
  b.synchronize();  // the weights are there, as they are in a step
  if (joined) {
    b.kernels().norm_gemm(b.stream(), {.c = c.t,
                                       .x = x.t,
                                       .gain = g,
                                       .shift = s,
                                       .b = w.t,
                                       .bias = bias.t,
                                       .prior = before,
                                       .norm = norm,
                                       .gemm = spec});
  } else {
    b.kernels().norm(b.stream(),
                     {.y = y.t, .stat = stat.t, .x = x.t, .gain = g, .bias = s, .spec = norm});
    b.kernels().gemm(b.stream(),
                     {.c = c.t, .a = y.t, .b = w.t, .bias = bias.t, .prior = before, .spec = spec});
  }
  return c.read();
}

bool takes(int64_t rows, int64_t width, int64_t columns, DType dtype) {
  return card().kernels().norm_gemm_takes(card().stream(), rows, width, columns, dtype);
}

// Rows normed in a product, of which the gain is multiplied into the weights: another rounding than
// that of the normed rows, no larger.
TEST(CudaGemm, NormedRows) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  for (const int64_t M : {1, 2, 7, 8, 15, 16})
    for (const auto& [N, K] : few_sizes)
      for (const Norm kind : {Norm::layer, Norm::rms})
        for (const bool weight : {true, false}) {
          constexpr DType dtype = DType::bf16;
          SCOPED_TRACE(fmt::format("{}x{}x{} norm {} {}", M, N, K, int(kind), weight));
          ASSERT_TRUE(takes(M, K, N, dtype));
          const NormedProduct p{M, N, K, kind, M != 2, M % 2 == 1, M == 7 ? 30.0f : 0.0f, weight};
          const std::mt19937 random{uint32_t(M * N)};
          const std::vector<float> want = normed_product(*cpu, DType::f32, p, random, dtype, false);
          const std::vector<float> got = normed_product(card(), dtype, p, random, dtype, true);
          EXPECT_LT(test::distance(got, want), 1.2e-2);
          EXPECT_TRUE(normed_product(card(), dtype, p, random, dtype, true) == got) << "other bits";
        }
  EXPECT_FALSE(takes(65, 768, 768, DType::bf16));
  EXPECT_FALSE(takes(1, 768, 768, DType::f16));
  EXPECT_FALSE(takes(1, 768, 768, DType::f32));
}

// The same of more rows. A size to a test, which a sanitizer ends in minutes.
class CudaSomeNormedRows : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(CudaSomeNormedRows, AreNormedAndMultiplied) {
  HEARTH_NEEDS_A_CARD();
  if (!takes(64, 768, 768, DType::bf16)) GTEST_SKIP() << "needs a Hopper card";
  const auto cpu = make_cpu_backend(2);
  const auto [N, K] = GetParam();
  for (const int64_t M : {17, 32, 33, 64})
    for (const Norm kind : {Norm::layer, Norm::rms})
      for (const DType dtype : {DType::bf16, DType::f16}) {
        SCOPED_TRACE(fmt::format("{} rows, norm {} {}", M, int(kind), to_string(dtype)));
        ASSERT_TRUE(takes(M, K, N, dtype));
        const NormedProduct p{.M = M,
                              .N = N,
                              .K = K,
                              .kind = kind,
                              .gains = M != 32,
                              .joins = M % 2 == 1,
                              .mean = M == 64 ? 30.0f : 0.0f};
        const std::mt19937 random{uint32_t(M * N)};
        const std::vector<float> want = normed_product(*cpu, DType::f32, p, random, dtype, false);
        const std::vector<float> got = normed_product(card(), dtype, p, random, dtype, true);
        EXPECT_LT(test::distance(got, want), dtype == DType::bf16 ? 1.2e-2 : 1.5e-3);
        for (int i = 0; i < 5; ++i)
          EXPECT_TRUE(normed_product(card(), dtype, p, random, dtype, true) == got) << "other bits";
      }
}

INSTANTIATE_TEST_SUITE_P(
    , CudaSomeNormedRows,
    testing::Values(std::pair<int64_t, int64_t>{257, 40}, std::pair<int64_t, int64_t>{96, 768},
                    std::pair<int64_t, int64_t>{48, 2048}, std::pair<int64_t, int64_t>{2304, 768},
                    std::pair<int64_t, int64_t>{72, 1024}, std::pair<int64_t, int64_t>{40, 1544}),
    [](const auto& info) { return fmt::format("{}x{}", info.param.first, info.param.second); });

INSTANTIATE_TEST_SUITE_P(, CudaOps, testing::ValuesIn(on_a_card(op_cases())),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(, CudaAttentionOps, testing::ValuesIn(on_a_card(attention_cases())),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hearth::cases
