// Batches of products by our own kernel for Hopper (gemm_hopper) against sums in double of the same
// inputs: symmetric products and plain ones, sizes that fill no tile, one product to many, the same
// bits in every run. On other cards, and for other sizes, the same calls run by cuBLASLt.
#include <fmt/format.h>

#include <cstring>

#include "held.h"

namespace hearth {
namespace {

using test::card;
using test::consumer_card;
using test::Held;
using test::own_products_card;

// rows: x xᵀ, columns: xᵀ x, square: x x of a symmetric x. These are symmetric. plain: b x.
enum class Kind : uint8_t { rows, columns, square, plain };
constexpr const char* kind_names[] = {"rows", "columns", "square", "plain"};

struct Case {
  Kind kind;
  int64_t batch, M, N, K;
  float alpha = 1, beta = 0;  // beta 0: no prior
};

Shape a_shape(const Case& z) {
  return z.kind == Kind::columns ? Shape{z.batch, z.K, z.M} : Shape{z.batch, z.M, z.K};
}
Shape b_shape(const Case& z) { return {z.batch, z.K, z.N}; }
Shape c_shape(const Case& z) { return {z.batch, z.M, z.N}; }

GemmSpec spec_of(const Case& z) {
  return {.ta = z.kind == Kind::columns,
          .tb = z.kind == Kind::rows,
          .alpha = z.alpha,
          .beta = z.beta == 0 ? 1 : z.beta,
          .batch = z.batch,
          .symmetric = z.kind != Kind::plain};
}

std::vector<float> made_symmetric(std::vector<float> x, int64_t batch, int64_t n) {
  for (int64_t i = 0; i < batch; ++i)
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < r; ++c)
        x[size_t((i * n + c) * n + r)] = x[size_t((i * n + r) * n + c)];
  return x;
}

// Random operands on the host.
struct Inputs {
  explicit Inputs(const Case& z) {
    std::mt19937 random{uint32_t(z.M * 31 + z.N * 7 + z.K)};
    const auto draw = [&](Shape s) {
      return test::rounded(size_t(s.numel()), DType::bf16, random);
    };
    a = draw(a_shape(z));
    if (z.kind == Kind::square) a = made_symmetric(a, z.batch, z.M);
    if (z.kind == Kind::plain) b = draw(b_shape(z));
    if (z.beta != 0) prior = draw(c_shape(z));
    if (z.beta != 0 && z.kind != Kind::plain) prior = made_symmetric(prior, z.batch, z.M);
  }
  std::vector<float> a, b, prior;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Computes the product several times and expects the same bits from every run.
std::vector<float> product_on(Backend& backend, const Case& z, const Inputs& x, int runs = 3) {
  Held a(backend, a_shape(z), DType::bf16), b(backend, b_shape(z), DType::bf16);
  Held prior(backend, c_shape(z), DType::bf16), c(backend, c_shape(z), DType::bf16);
  a.fill(x.a);
  if (!x.b.empty()) b.fill(x.b);
  if (!x.prior.empty()) prior.fill(x.prior);
  std::vector<float> first;
  for (int run = 0; run < runs; ++run) {
    c.fill(std::vector<float>(size_t(c_shape(z).numel()), NAN));  // what is not written shows
    backend.kernels().gemm(backend.stream(), {.c = c.t,
                                              .a = a.t,
                                              .b = x.b.empty() ? a.t : b.t,
                                              .prior = x.prior.empty() ? Tensor{} : prior.t,
                                              .spec = spec_of(z)});
    const std::vector<float> got = c.read();
    if (run == 0) first = got;
    EXPECT_TRUE(same_bits(got, first)) << "other bits in run " << run;
  }
  return first;
}

double element(const Case& z, const Inputs& x, int64_t i, int64_t row, int64_t column) {
  const float* const a = x.a.data() + i * z.M * z.K;
  const float* const b = x.b.empty() ? a : x.b.data() + i * z.K * z.N;
  double sum = 0;
  for (int64_t k = 0; k < z.K; ++k) {
    const double left = z.kind == Kind::columns ? a[k * z.M + row] : a[row * z.K + k];
    const double right = z.kind == Kind::rows ? b[column * z.K + k] : b[k * z.N + column];
    sum += left * right;
  }
  const double prior = x.prior.empty() ? 0 : x.prior[size_t((i * z.M + row) * z.N + column)];
  return z.alpha * sum + z.beta * prior;
}

std::string name_of(const Case& z) {
  return fmt::format("{}: {} of {}x{}x{} alpha {} beta {}", kind_names[int(z.kind)], z.batch, z.M,
                     z.N, z.K, z.alpha, z.beta);
}

// Compares the given rows of every product; says how many elements are wrong and where the first
// is.
void expect_rows(const Case& z, const Inputs& x, const std::vector<float>& got,
                 const std::vector<int64_t>& rows) {
  const double scale = std::abs(z.alpha) * std::sqrt(double(z.K)) + std::abs(z.beta);
  int64_t wrong = 0;
  std::string first;
  for (int64_t i = 0; i < z.batch; ++i)
    for (const int64_t row : rows)
      for (int64_t column = 0; column < z.N; ++column) {
        const double want = element(z, x, i, row, column);
        const double have = got[size_t((i * z.M + row) * z.N + column)];
        if (std::abs(have - want) <= std::abs(want) / 256 + 1e-3 * scale) continue;
        if (wrong++ == 0)
          first = fmt::format("product {} row {} column {} (tile {}, {}): expected {}, got {}", i,
                              row, column, row / 128, column / 128, want, have);
      }
  EXPECT_EQ(wrong, 0) << first;
}

std::vector<int64_t> all_rows(const Case& z) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < z.M; ++i) rows.push_back(i);
  return rows;
}

// Rows at the edges of tiles and halves of tiles, and some inside.
std::vector<int64_t> some_rows(const Case& z) {
  std::vector<int64_t> rows;
  for (const int64_t r :
       {int64_t(0), int64_t(77), int64_t(128), int64_t(191), z.M / 2 + 8, z.M - 65, z.M - 1})
    rows.push_back(r);
  return rows;
}

void expect_product(const Case& z, bool every_row) {
  SCOPED_TRACE(name_of(z));
  const Inputs x(z);
  const std::vector<float> got = product_on(own_products_card(), z, x);
  expect_rows(z, x, got, every_row ? all_rows(z) : some_rows(z));
}

constexpr int64_t sides[] = {8, 64, 72, 128, 136, 200, 256, 392};
constexpr int64_t depths[] = {8, 64, 72, 128, 320, 328, 456};

TEST(CudaGemmHopperBatch, RowsTimesRows) {
  HEARTH_NEEDS_A_CARD();
  for (const int64_t side : sides)
    for (const int64_t depth : depths)
      for (const int64_t batch : {1, 3})
        expect_product({Kind::rows, batch, side, side, depth}, true);
}

TEST(CudaGemmHopperBatch, ColumnsTimesColumns) {
  HEARTH_NEEDS_A_CARD();
  for (const int64_t side : sides)
    for (const int64_t depth : depths)
      for (const int64_t batch : {1, 3})
        expect_product({Kind::columns, batch, side, side, depth}, true);
}

TEST(CudaGemmHopperBatch, SquareOfASymmetricMatrix) {
  HEARTH_NEEDS_A_CARD();
  for (const int64_t side : sides)
    for (const int64_t batch : {1, 4}) {
      expect_product({Kind::square, batch, side, side, side}, true);
      expect_product({Kind::square, batch, side, side, side, 15.9f, -22.5f}, true);
    }
}

TEST(CudaGemmHopperBatch, PlainProducts) {
  HEARTH_NEEDS_A_CARD();
  for (const auto& [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{8, 8, 8},
                                {64, 200, 72},
                                {128, 128, 64},
                                {136, 264, 328},
                                {256, 72, 136},
                                {72, 520, 72},
                                {392, 136, 136}})
    for (const int64_t batch : {2, 5})
      for (const float beta : {0.0f, 8.16f})
        expect_product({Kind::plain, batch, M, N, K, 1, beta}, true);
}

// More tiles than a card has multiprocessors, so that every block takes several in turn, with few
// and with many stages for each.
TEST(CudaGemmHopperBatch, ManyProducts) {
  HEARTH_NEEDS_A_CARD();
  for (const int64_t depth : {8, 64, 136, 384}) {
    expect_product({Kind::rows, 48, 392, 392, depth}, false);
    expect_product({Kind::columns, 47, 392, 392, depth}, false);
    expect_product({Kind::plain, 48, 264, 392, depth, 1, 4.04f}, false);
  }
  expect_product({Kind::square, 48, 392, 392, 392, 0.5f, -2.8f}, false);
}

// The products of an update of GPT-2 124M, for some of its layers.
TEST(CudaGemmHopperBatch, ProductsOfMuon) {
  HEARTH_NEEDS_A_CARD();
  expect_product({Kind::rows, 8, 768, 768, 768}, false);
  expect_product({Kind::rows, 4, 768, 768, 3072}, false);
  expect_product({Kind::columns, 4, 768, 768, 3072}, false);
  expect_product({Kind::square, 8, 768, 768, 768, 15.9f, -22.5f}, false);
  expect_product({Kind::square, 4, 768, 768, 768, 0.5f, -2.8f}, false);
  expect_product({Kind::plain, 8, 768, 768, 768, 1, 8.16f}, false);
  expect_product({Kind::plain, 4, 768, 3072, 768, 1, 8.16f}, false);
  expect_product({Kind::plain, 4, 3072, 768, 768, 1, 8.16f}, false);
}

// Off the diagonal tiles both halves are one sum.
TEST(CudaGemmHopperBatch, HalvesHaveTheSameBits) {
  HEARTH_NEEDS_A_CARD();
  if (cuda_card(0).major != 9) return;  // cuBLASLt promises no such thing
  const Case z{Kind::square, 3, 392, 392, 392, 0.5f, -2.8f};
  const std::vector<float> got = product_on(own_products_card(), z, Inputs(z));
  for (int64_t i = 0; i < z.batch; ++i)
    for (int64_t row = 128; row < z.M; ++row)
      for (int64_t column = 0; column < row / 128 * 128; ++column)
        ASSERT_EQ(got[size_t((i * z.M + row) * z.M + column)],
                  got[size_t((i * z.M + column) * z.M + row)])
            << "product " << i << " row " << row << " column " << column;
}

// Sizes that the kernel does not take, a backend without it, and one that measures.
TEST(CudaGemmHopperBatch, OtherPathsAgree) {
  HEARTH_NEEDS_A_CARD();
  for (const int64_t side : {7, 30, 129})
    for (const Kind kind : {Kind::rows, Kind::columns})
      expect_product({kind, 3, side, side, 41}, true);
  for (const Kind kind : {Kind::rows, Kind::columns, Kind::square, Kind::plain}) {
    const Case z{kind, 6, 200, 200, 200, 1.5f, -0.5f};
    SCOPED_TRACE(name_of(z));
    const Inputs x(z);
    expect_rows(z, x, product_on(consumer_card(), z, x), all_rows(z));
    expect_rows(z, x, product_on(card(), z, x), all_rows(z));
  }
}

// One iteration of Muon: three kernels that overlap at their ends, each of which reads what the one
// before it wrote. The same bits come out if every kernel ends before the next one begins.
TEST(CudaGemmHopperBatch, KernelsWaitForEachOther) {
  HEARTH_NEEDS_A_CARD();
  Backend& own = own_products_card();
  const int64_t n = 24, R = 392, C = 776;
  const Inputs x({Kind::rows, n, R, R, C});
  Held from(own, {n, R, C}, DType::bf16), A(own, {n, R, R}, DType::bf16);
  Held B(own, {n, R, R}, DType::bf16), y(own, {n, R, C}, DType::bf16);
  from.fill(x.a);
  const auto iterate = [&](bool waits) {
    for (Held* t : {&A, &B, &y}) t->fill(std::vector<float>(size_t(t->t.numel()), NAN));
    const auto multiply = [&](const GemmArgs& args) {
      own.kernels().gemm(own.stream(), args);
      if (waits) own.synchronize();
    };
    multiply({.c = A.t,
              .a = from.t,
              .b = from.t,
              .spec = {.tb = true, .alpha = 1e-3f, .batch = n, .symmetric = true}});
    multiply({.c = B.t,
              .a = A.t,
              .b = A.t,
              .prior = A.t,
              .spec = {.alpha = 0.5f, .beta = -2.8f, .batch = n, .symmetric = true}});
    multiply(
        {.c = y.t, .a = B.t, .b = from.t, .prior = from.t, .spec = {.beta = 4.0f, .batch = n}});
    return y.read();
  };
  const std::vector<float> want = iterate(true);
  for (const float v : want) ASSERT_TRUE(std::isfinite(v));
  for (int run = 0; run < 20; ++run) ASSERT_TRUE(same_bits(iterate(false), want)) << run;
}

}  // namespace
}  // namespace hearth
