// Single products by our own kernel for Hopper (gemm_hopper) with their epilogues, against sums in
// double of the same inputs: each variant of the kernel, sizes that fill no tile and no cluster,
// few and many stages, the same bits in every run and from every variant. On other cards the same
// calls run by cuBLASLt.
#include <fmt/format.h>

#include <cstring>

#include "held.h"

namespace hearth {
namespace {

using test::card;
using test::consumer_card;
using test::Held;

// What follows the product.
enum class Then : uint8_t {
  nothing,
  bias,
  prior,
  both,
  gelu,
  gelu_alone,
  relu2,
  gelu_slope,
  relu2_slope
};
constexpr const char* then_names[] = {"nothing",    "bias",  "prior",      "both",       "gelu",
                                      "gelu_alone", "relu2", "gelu_slope", "relu2_slope"};
constexpr Then forward_ones[] = {Then::nothing, Then::bias,       Then::prior, Then::both,
                                 Then::gelu,    Then::gelu_alone, Then::relu2};
constexpr Then gradient_ones[] = {Then::nothing, Then::prior, Then::gelu_slope, Then::relu2_slope};

struct Case {
  bool forward;  // a bᵀ; otherwise a b
  Then then;
  int64_t M, N, K;
  float alpha = 1;

  bool slope() const { return then == Then::gelu_slope || then == Then::relu2_slope; }
  bool has_bias() const { return forward && then != Then::nothing && then != Then::prior; }
  bool has_prior() const { return then == Then::prior || then == Then::both; }
  bool keeps() const { return then == Then::gelu || then == Then::relu2; }
  Act act() const {
    if (then == Then::relu2 || then == Then::relu2_slope) return Act::relu2;
    return then >= Then::gelu ? Act::gelu_tanh : Act::none;
  }
  std::string name() const {
    return fmt::format("{} {} {}x{}x{} alpha {}", forward ? "forward" : "gradient",
                       then_names[int(then)], M, N, K, alpha);
  }
};

// What the products of these sizes read; drawing numbers takes most of the time of a test.
struct Inputs {
  Inputs(int64_t M, int64_t N, int64_t K) {
    std::mt19937 random{uint32_t(M * 31 + N * 7 + K)};
    const auto draw = [&](int64_t n) { return test::rounded(size_t(n), DType::bf16, random); };
    a = draw(M * K);
    b = draw(N * K);
    for (float& v : b) v = float(bf16(v / std::sqrt(float(K))));
    bias = draw(N);
    matrix = draw(M * N);
  }
  std::vector<float> a, b, bias, matrix;  // matrix: the prior, or the argument of an activation
};

struct Outputs {
  std::vector<float> c, aux;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Computes the product several times and expects the same bits from every run.
Outputs product_on(Backend& backend, const Case& z, const Inputs& x, int runs = 2) {
  const Shape c_shape{z.M, z.N};
  const auto hold = [&](Shape s, const std::vector<float>* from) {
    auto held = std::make_unique<Held>(backend, s, DType::bf16);
    if (from) held->fill(*from);
    return held;
  };
  const auto a = hold({z.M, z.K}, &x.a),
             b = hold(z.forward ? Shape{z.N, z.K} : Shape{z.K, z.N}, &x.b);
  const auto bias = hold({z.N}, &x.bias), c = hold(c_shape, nullptr);
  const auto prior = hold(c_shape, z.has_prior() ? &x.matrix : nullptr);
  const auto aux = hold(c_shape, z.slope() ? &x.matrix : nullptr);
  const std::vector<float> unwritten(size_t(c_shape.numel()), NAN);
  Outputs first;
  for (int run = 0; run < runs; ++run) {
    c->fill(unwritten);
    if (z.keeps()) aux->fill(unwritten);
    backend.kernels().gemm(
        backend.stream(),
        {.c = c->t,
         .aux = z.keeps() || z.slope() ? aux->t : Tensor{},
         .a = a->t,
         .b = b->t,
         .bias = z.has_bias() ? bias->t : Tensor{},
         .prior = z.has_prior() ? prior->t : Tensor{},
         .spec = {.tb = z.forward, .alpha = z.alpha, .act = z.act(), .act_slope = z.slope()}});
    Outputs got{c->read(), z.keeps() ? aux->read() : std::vector<float>{}};
    if (run == 0)
      first = std::move(got);
    else
      EXPECT_TRUE(same_bits(got.c, first.c) && same_bits(got.aux, first.aux)) << "run " << run;
  }
  return first;
}

double sum_of(const Case& z, const Inputs& x, int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t k = 0; k < z.K; ++k)
    sum += double(x.a[size_t(row * z.K + k)]) *
           double(z.forward ? x.b[size_t(column * z.K + k)] : x.b[size_t(k * z.N + column)]);
  return sum;
}

// Compares some rows; says how many elements are wrong and where the first is.
void expect_rows(const Case& z, const Inputs& x, const Outputs& got,
                 const std::vector<int64_t>& rows) {
  int64_t wrong = 0;
  std::string first;
  const auto compare = [&](const char* what, double have, double want, double more, int64_t row,
                           int64_t column) {
    if (std::abs(have - want) <= std::abs(want) / 128 + more + 4e-3) return;
    if (wrong++ == 0)
      first = fmt::format("{} row {} column {} (tile {}, {}): expected {}, got {}", what, row,
                          column, row / 128, column / 128, want, have);
  };
  for (const int64_t row : rows)
    for (int64_t column = 0; column < z.N; ++column) {
      const auto at = size_t(row * z.N + column);
      const double sum = sum_of(z, x, row, column) + (z.has_bias() ? x.bias[size_t(column)] : 0);
      double want = z.alpha * sum + (z.has_prior() ? x.matrix[at] : 0);
      double more = 0;  // the argument of act may be rounded to either neighbour
      if (z.slope()) {
        want = z.alpha * sum * activate(z.act(), double(x.matrix[at])).dy;
      } else if (z.act() != Act::none) {
        const double rounded = double(float(bf16(float(sum))));
        const auto act = activate(z.act(), rounded);
        want = act.y;
        more = std::abs(act.dy * rounded) / 128;
      }
      compare("c", got.c[at], want, more, row, column);
      if (z.keeps()) compare("aux", got.aux[at], sum, 0, row, column);
    }
  EXPECT_EQ(wrong, 0) << first;
}

std::vector<int64_t> rows_of(const Case& z, bool every_row) {
  std::vector<int64_t> rows;
  if (!every_row) return {0, 77, 127, z.M / 2, z.M / 2 + 9, z.M - 64, z.M - 1};
  for (int64_t i = 0; i < z.M; ++i) rows.push_back(i);
  return rows;
}

void expect_product(const Case& z, const Inputs& x, bool every_row) {
  SCOPED_TRACE(z.name());
  Outputs first;
  for (int variant = 0; variant < 3; ++variant) {
    SCOPED_TRACE(fmt::format("variant {}", variant));
    const Outputs got = product_on(test::own_products_card(variant), z, x);
    if (variant > 0 && same_bits(got.c, first.c) && same_bits(got.aux, first.aux)) continue;
    EXPECT_EQ(variant, 0) << "expected the bits of variant 0";
    expect_rows(z, x, got, rows_of(z, every_row));
    first = got;
  }
}

void expect_products(int64_t M, int64_t N, int64_t K, bool every_row) {
  const Inputs x(M, N, K);
  for (const Then then : forward_ones) expect_product({true, then, M, N, K}, x, every_row);
  for (const Then then : gradient_ones) expect_product({false, then, M, N, K}, x, every_row);
  expect_product({false, Then::prior, M, N, K, 0.5f}, x, every_row);
  expect_product({false, Then::gelu_slope, M, N, K, 0.5f}, x, every_row);
}

TEST(CudaGemmHopper, SmallProducts) {
  HEARTH_NEEDS_A_CARD();
  for (const auto& [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{128, 128, 8},
                                {136, 264, 72},
                                {264, 136, 328},
                                {128, 392, 64},
                                {392, 128, 456},
                                {520, 520, 320}})
    expect_products(M, N, K, true);
}

// More tiles than a card has multiprocessors, with few and with many stages for each.
TEST(CudaGemmHopper, ManyTiles) {
  HEARTH_NEEDS_A_CARD();
  expect_products(4168, 1032, 64, false);
  expect_products(4104, 776, 136, false);
  expect_products(2056, 1544, 768, false);
}

// Widths of GPT-2 124M, and of gpt2-xl, which tiles do not divide.
TEST(CudaGemmHopper, ProductsOfModels) {
  HEARTH_NEEDS_A_CARD();
  expect_products(1024, 3072, 768, false);
  expect_products(1536, 1600, 6400, false);
}

// A product with a prior may add to its own result.
TEST(CudaGemmHopper, AddsInPlace) {
  HEARTH_NEEDS_A_CARD();
  for (int variant = 0; variant < 3; ++variant) {
    const Case z{false, Then::prior, 1032, 776, 392};
    const Inputs x(z.M, z.N, z.K);
    Backend& own = test::own_products_card(variant);
    const Outputs want = product_on(own, z, x);
    Held a(own, {z.M, z.K}, DType::bf16), b(own, {z.K, z.N}, DType::bf16);
    Held c(own, {z.M, z.N}, DType::bf16);
    a.fill(x.a);
    b.fill(x.b);
    c.fill(x.matrix);
    own.kernels().gemm(own.stream(), {.c = c.t, .a = a.t, .b = b.t, .prior = c.t});
    EXPECT_TRUE(same_bits(c.read(), want.c)) << variant;
  }
}

// ---- products joined with a GLU ----

struct Gated {
  bool slope, keeps;
  int64_t M, N, K;
  float alpha = 1;
  std::string name() const {
    return fmt::format("{}{} {}x{}x{} alpha {}", slope ? "gradient" : "forward",
                       keeps ? "" : " alone", M, N, K, alpha);
  }
};

struct GatedInputs {
  explicit GatedInputs(const Gated& z) {
    std::mt19937 random{uint32_t(z.M * 31 + z.N * 7 + z.K)};
    const auto draw = [&](int64_t n) { return test::rounded(size_t(n), DType::bf16, random); };
    a = draw(z.M * z.K);
    b = draw((z.slope ? 1 : 2) * z.N * z.K);
    for (float& v : b) v = float(bf16(v / std::sqrt(float(z.K))));
    if (z.slope) pre = draw(z.M * 2 * z.N);
  }
  std::vector<float> a, b, pre;
};

// c and pre, the same bits in every run.
Outputs gated_on(Backend& backend, const Gated& z, const GatedInputs& x) {
  Held a(backend, {z.M, z.K}, DType::bf16), pre(backend, {z.M, 2 * z.N}, DType::bf16);
  Held b(backend, z.slope ? Shape{z.K, z.N} : Shape{2 * z.N, z.K}, DType::bf16);
  Held c(backend, {z.M, z.slope ? 2 * z.N : z.N}, DType::bf16);
  a.fill(x.a);
  b.fill(x.b);
  Outputs first;
  for (int run = 0; run < 2; ++run) {
    c.fill(std::vector<float>(size_t(c.t.numel()), NAN));
    pre.fill(z.slope ? x.pre : std::vector<float>(size_t(pre.t.numel()), NAN));
    EXPECT_TRUE(backend.kernels().gemm_glu(backend.stream(), {.c = c.t,
                                                              .pre = z.keeps ? pre.t : Tensor{},
                                                              .a = a.t,
                                                              .b = b.t,
                                                              .slope = z.slope,
                                                              .alpha = z.alpha}));
    Outputs got{c.read(), pre.read()};
    if (run == 0)
      first = std::move(got);
    else
      EXPECT_TRUE(same_bits(got.c, first.c) && (!z.keeps || same_bits(got.aux, first.aux)))
          << "run " << run;
  }
  return first;
}

void expect_gated_row(const Gated& z, const GatedInputs& x, const Outputs& got, int64_t row) {
  const auto sum = [&](int64_t column) {
    double s = 0;
    for (int64_t k = 0; k < z.K; ++k)
      s += double(x.a[size_t(row * z.K + k)]) *
           double(z.slope ? x.b[size_t(k * z.N + column)] : x.b[size_t(column * z.K + k)]);
    return s;
  };
  const auto expect = [&](const char* what, double have, double want, int64_t column) {
    ASSERT_LE(std::abs(have - want), std::abs(want) / 100 + 8e-3)
        << what << " row " << row << " column " << column << " of " << z.name();
  };
  const auto rounded = [](double v) { return double(float(bf16(float(v)))); };
  for (int64_t j = 0; j < z.N; ++j) {
    if (z.slope) {
      const double d = z.alpha * sum(j), up = x.pre[size_t(row * 2 * z.N + z.N + j)];
      const auto act = activate(Act::swiglu, double(x.pre[size_t(row * 2 * z.N + j)]));
      expect("gate", got.c[size_t(row * 2 * z.N + j)], d * up * act.dy, j);
      expect("up", got.c[size_t(row * 2 * z.N + z.N + j)], d * act.y, j);
      continue;
    }
    const double gate = sum(j), up = sum(z.N + j);
    expect("c", got.c[size_t(row * z.N + j)], activate(Act::swiglu, rounded(gate)).y * rounded(up),
           j);
    if (!z.keeps) continue;
    expect("gate", got.aux[size_t(row * 2 * z.N + j)], gate, j);
    expect("up", got.aux[size_t(row * 2 * z.N + z.N + j)], up, j);
  }
}

TEST(CudaGemmHopper, GatedProducts) {
  HEARTH_NEEDS_A_CARD();
  if (cuda_card(0).major != 9) return;  // other cards have no such kernel
  for (const auto& [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{2048, 64, 8},
                                {2056, 192, 72},
                                {2184, 128, 328},
                                {2104, 320, 768},
                                {4104, 1024, 768}})
    for (const Gated& z : {Gated{false, true, M, N, K}, Gated{false, false, M, N, K},
                           Gated{true, true, M, N, K}, Gated{true, true, M, N, K, 0.5f}}) {
      const GatedInputs x(z);
      Outputs first;
      for (int variant = 0; variant < 3; ++variant) {
        SCOPED_TRACE(fmt::format("variant {}", variant));
        const Outputs got = gated_on(test::own_products_card(variant), z, x);
        if (variant == 0) {
          for (const int64_t row : {int64_t(0), int64_t(127), int64_t(1000), M - 65, M - 1})
            expect_gated_row(z, x, got, row);
          first = got;
        }
        EXPECT_TRUE(same_bits(got.c, first.c)) << z.name();
        if (z.keeps) { EXPECT_TRUE(same_bits(got.aux, first.aux)) << z.name(); }
      }
    }
}

// A backend that measures, and one without the kernel.
TEST(CudaGemmHopper, OtherPathsAgree) {
  HEARTH_NEEDS_A_CARD();
  for (Backend* backend : {&card(), &consumer_card()})
    for (const Then then : forward_ones) {
      const Case z{true, then, 392, 264, 136};
      SCOPED_TRACE(z.name());
      const Inputs x(z.M, z.N, z.K);
      expect_rows(z, x, product_on(*backend, z, x), rows_of(z, true));
    }
}

}  // namespace
}  // namespace hearth
