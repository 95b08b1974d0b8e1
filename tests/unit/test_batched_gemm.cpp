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

}  // namespace
}  // namespace hearth::cpu_test
