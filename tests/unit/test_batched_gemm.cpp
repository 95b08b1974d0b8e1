// Batches of products with a factor on the prior: every usable instruction set against the
// reference in double, the reference against the definition, and the bits of single products.
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

struct Size {
  int64_t M, N, K;
};
constexpr Size sizes[] = {{1, 1, 1},    {3, 5, 7},    {16, 16, 16}, {17, 33, 9},
                          {64, 48, 80}, {70, 129, 1}, {5, 200, 67}};

Shape stored(int64_t batch, int64_t rows, int64_t cols, bool transposed) {
  return transposed ? Shape{batch, cols, rows} : Shape{batch, rows, cols};
}

TEST(BatchedGemm, AgreesWithTheReference) {
  for (const DType d : dtypes)
    for (const Size& z : sizes)
      for (const int layout : {0, 1, 2, 3})
        for (const int64_t batch : {1, 2, 5})
          for (const float beta : {1.0f, -2.75f}) {
            const bool ta = layout & 1, tb = layout & 2;
            const Array a = random(stored(batch, z.M, z.K, ta), d);
            const Array b = random(stored(batch, z.K, z.N, tb), d);
            const Array prior = random({batch, z.M, z.N}, d);
            const GemmSpec spec{.ta = ta, .tb = tb, .alpha = 1.5f, .beta = beta, .batch = batch};
            check(
                fmt::format("{} of {}x{}x{} layout {} beta {}", batch, z.M, z.N, z.K, layout, beta),
                d, [&](const Runner& r) {
                  Array c = r.out({batch, z.M, z.N});
                  r.k.gemm(r.s, {.c = c, .a = a, .b = b, .prior = prior, .spec = spec});
                  return outputs(std::move(c));
                });
          }
}

// The reference itself, against the definition.
TEST(BatchedGemm, OfTheReferenceIsTheDefinition) {
  const int64_t batch = 3, M = 4, N = 5, K = 6;
  for (const int layout : {0, 1, 2, 3}) {
    const bool ta = layout & 1, tb = layout & 2;
    const Array a = Array::random(stored(batch, M, K, ta)), prior = Array::random({batch, M, N});
    const Array b = Array::random(stored(batch, K, N, tb));
    Array c({batch, M, N});
    reference_kernels().gemm(
        Array::stream(), {.c = c,
                          .a = a,
                          .b = b,
                          .prior = prior,
                          .spec = {.ta = ta, .tb = tb, .alpha = 0.5f, .beta = -3, .batch = batch}});
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < N; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < K; ++k)
            sum += a[n * M * K + (ta ? k * M + i : i * K + k)] *
                   b[n * K * N + (tb ? j * K + k : k * N + j)];
          const int64_t at = (n * M + i) * N + j;
          EXPECT_NEAR(c[at], 0.5 * sum - 3 * prior[at], 1e-12) << n << " " << i << " " << j;
        }
  }
}

// Half of a symmetric product and its mirror image are the whole product, to the bit: x x^T, x^T x
// and A A + A of these, in sizes that tiles and blocks of k do not divide.
TEST(BatchedGemm, SymmetricProductsHaveTheBitsOfWholeOnes) {
  for (const DType d : dtypes)
    for (const Isa isa : usable_isas())
      for (const int threads : {1, 3})
        for (const auto& [n, k] : {std::pair{1, 1}, {7, 40}, {33, 300}, {70, 9}, {150, 1100}})
          for (const bool tall : {false, true}) {
            SCOPED_TRACE(fmt::format("{} {} of {} with {}", name(isa), n, k, threads));
            const int64_t batch = 4;
            const Runner r = runner_of(isa, threads, d);
            const Array x = random(stored(batch, n, k, tall), d);
            const GemmSpec spec{.ta = tall, .tb = !tall, .batch = batch};
            GemmSpec half = spec;
            half.symmetric = true;
            Array whole = r.out({batch, n, n}), got = r.out({batch, n, n});
            r.k.gemm(r.s, {.c = whole, .a = x, .b = x, .spec = spec});
            r.k.gemm(r.s, {.c = got, .a = x, .b = x, .spec = half});
            EXPECT_TRUE(same_bytes(whole, got));
            const GemmSpec square{.alpha = 0.3f, .beta = -2, .batch = batch};
            half = square;
            half.symmetric = true;
            Array whole2 = r.out({batch, n, n}), got2 = r.out({batch, n, n});
            r.k.gemm(r.s, {.c = whole2, .a = whole, .b = whole, .prior = whole, .spec = square});
            r.k.gemm(r.s, {.c = got2, .a = got, .b = got, .prior = got, .spec = half});
            EXPECT_TRUE(same_bytes(whole2, got2));
          }
}

// Of symmetric matrices that commute, the product is symmetric but for its rounding: it is made so,
// with the bits of the whole product below the diagonal, at any number of threads.
TEST(BatchedGemm, ProductsOfCommutingMatricesAreExactlySymmetric) {
  const int64_t n = 130, batch = 2;
  for (const DType d : dtypes)
    for (const Isa isa : usable_isas())
      for (const int threads : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{} with {}", name(isa), threads));
        const Runner r = runner_of(isa, threads, d);
        const Array x = random({batch, n, n}, d, 0.1);
        Array a = r.out({batch, n, n}), b = r.out({batch, n, n});
        Array whole = r.out({batch, n, n}), got = r.out({batch, n, n});
        const GemmSpec square{.tb = true, .batch = batch, .symmetric = true};
        r.k.gemm(r.s, {.c = a, .a = x, .b = x, .spec = square});
        r.k.gemm(r.s, {.c = b, .a = a, .b = a, .prior = a, .spec = square});
        GemmSpec spec{.batch = batch};
        r.k.gemm(r.s, {.c = whole, .a = a, .b = b, .prior = a, .spec = spec});
        spec.symmetric = true;
        r.k.gemm(r.s, {.c = got, .a = a, .b = b, .prior = a, .spec = spec});
        const Array w = whole.as(DType::f64), g = got.as(DType::f64);
        for (int64_t m = 0; m < batch; ++m)
          for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < n; ++j)
              ASSERT_EQ(g[(m * n + i) * n + j], w[(m * n + std::max(i, j)) * n + std::min(i, j)])
                  << m << " " << i << " " << j;
      }
}

// A product has the same bits alone and in a batch.
TEST(BatchedGemm, HasTheBitsOfSingleProducts) {
  const int64_t batch = 4, M = 37, N = 50, K = 65;
  for (const DType d : dtypes)
    for (const Isa isa : usable_isas()) {
      const Runner run = runner_of(isa, 2, d);
      const Array a = random({batch, M, K}, d), b = random({batch, N, K}, d);
      Array all = run.out({batch, M, N}), one = run.out({M, N});
      run.k.gemm(run.s, {.c = all, .a = a, .b = b, .spec = {.tb = true, .batch = batch}});
      for (int64_t i = 0; i < batch; ++i) {
        const auto matrix = [i](const Array& x, int64_t rows, int64_t cols) {
          const Tensor t = x;
          return Tensor{t.data + i * rows * cols * size_of(t.dtype), {rows, cols}, t.dtype};
        };
        run.k.gemm(run.s,
                   {.c = one, .a = matrix(a, M, K), .b = matrix(b, N, K), .spec = {.tb = true}});
        EXPECT_TRUE(same_bytes(one, matrix(all, M, N))) << i;
      }
    }
}

// Threads that compute whole products, and those that share the rest of the batch.
TEST(BatchedGemm, HasTheSameBitsAtAnyNumberOfThreads) {
  const int64_t batch = 7, M = 65, N = 50, K = 300;
  for (const DType d : dtypes)
    for (const Isa isa : usable_isas()) {
      const Array a = random({batch, M, K}, d), b = random({batch, K, N}, d);
      const Array prior = random({batch, M, N}, d);
      std::vector<Array> all;
      for (const int threads : {1, 2, 3}) {
        const Runner run = runner_of(isa, threads, d);
        all.push_back(run.out({batch, M, N}));
        run.k.gemm(run.s, {.c = all.back(),
                           .a = a,
                           .b = b,
                           .prior = prior,
                           .spec = {.beta = 0.5f, .batch = batch}});
      }
      EXPECT_TRUE(same_bytes(all[0], all[1]) && same_bytes(all[0], all[2])) << name(isa);
    }
}

}  // namespace
}  // namespace hearth::cpu_test
