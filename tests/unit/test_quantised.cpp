// Quantised weights: what they stand for, and products with them on every instruction set against a
// double reference, whose sums must agree exactly but for the last multiplications.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/quantised.h"
#include "cpu/gemm.h"
#include "cpu/reference/reference.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth {
namespace {

std::vector<float> normal(int64_t n, uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = draw(bits);
  return v;
}

struct Aligned {  // as a backend's memory is
  explicit Aligned(int64_t bytes) : memory(size_t(bytes) + 64) {}
  std::byte* data() {
    return reinterpret_cast<std::byte*>((uintptr_t(memory.data()) + 63) / 64 * 64);
  }
  std::vector<std::byte> memory;
};

struct Weights {
  QuantLayout layout;
  Aligned memory;
  Weights(int64_t N, int64_t K, WeightFormat f, const std::vector<float>& w)
      : layout(N, K, f), memory(layout.bytes()) {
    Threads threads(2);
    quantise({memory.data(), size_t(layout.bytes())}, layout, w, threads);
  }
  double at(int64_t n, int64_t k) { return quantised_value(memory.data(), n, k); }
};

TEST(quantised, int8_is_within_half_a_step) {
  const int64_t N = 37, K = 131;
  const std::vector<float> w = normal(N * K, 1);
  Weights q(N, K, WeightFormat::int8, w);
  for (int64_t n = 0; n < N; ++n) {
    float most = 0;
    for (int64_t k = 0; k < K; ++k) most = std::max(most, std::abs(w[size_t(n * K + k)]));
    for (int64_t k = 0; k < K; ++k)
      EXPECT_NEAR(q.at(n, k), w[size_t(n * K + k)], most / 127 * 0.5001);
  }
}

// Normal weights at 4 bits in groups of 32 with the scale that reaches the largest: about 0.8% of
// their square is lost. Whole multiples for scales must not cost more than a little of that.
TEST(quantised, int4_loses_little) {
  const int64_t N = 64, K = 768;
  std::vector<float> w = normal(N * K, 2);
  for (int64_t n = 0; n < N; ++n) w[size_t(n * K + n)] *= 4;  // rows have their outliers
  Weights q(N, K, WeightFormat::int4, w);
  double lost = 0, all = 0;
  for (int64_t i = 0; i < N * K; ++i) {
    const double x = w[size_t(i)], d = x - q.at(i / K, i % K);
    lost += d * d, all += x * x;
  }
  EXPECT_LT(lost / all, 0.011);
  EXPECT_GT(lost / all, 0.003);
}

// A code has 4 significant bits, or is a multiple of 2^-9 of the scale.
TEST(quantised, fp8_is_within_half_a_place) {
  const int64_t N = 21, K = 131;
  std::vector<float> w = normal(N * K, 3);
  for (int64_t n = 0; n < N; ++n) w[size_t(n * K + n)] *= float(1 << n % 12);  // rows with outliers
  Weights q(N, K, WeightFormat::fp8, w);
  for (int64_t n = 0; n < N; ++n) {
    float most = 0;
    for (int64_t k = 0; k < K; ++k) most = std::max(most, std::abs(w[size_t(n * K + k)]));
    for (int64_t k = 0; k < K; ++k) {
      const double x = w[size_t(n * K + k)];
      EXPECT_NEAR(q.at(n, k), x, std::max(std::abs(x) / 16, most / 448 * 0x1p-10) * 1.0001);
      if (std::abs(w[size_t(n * K + k)]) == most) {
        EXPECT_NEAR(q.at(n, k), x, std::abs(x) * 1e-6);
      }
    }
  }
}

// Who sees the bytes and the width alone finds the rows, whatever the format.
TEST(quantised, layout_follows_from_bytes) {
  for (const WeightFormat f : weight_formats) {
    if (f == WeightFormat::plain) continue;
    EXPECT_EQ(format_of(panels_of(f)), f);
    for (const int64_t n : {1, 16, 17, 64, 50304})
      for (const int64_t k : {1, 32, 64, 65, 768, 4100}) {
        const QuantLayout l(n, k, f), found = QuantLayout::of_bytes(l.bytes(), k, f);
        EXPECT_EQ(found.rows, l.rows);
        EXPECT_EQ(found.bytes(), l.bytes());
        EXPECT_EQ(l.panel(0) % 64, 0);
        EXPECT_EQ(l.panel_bytes() % 64, 0);
      }
  }
  EXPECT_FALSE(is_panels(DType::u8));
}

TEST(quantised, zeros_stay_zeros) {
  for (const WeightFormat f : {WeightFormat::int8, WeightFormat::int4, WeightFormat::fp8}) {
    Weights q(3, 70, f, std::vector<float>(210));
    for (int64_t n = 0; n < 16; ++n)
      for (int64_t k = 0; k < 70; ++k) EXPECT_EQ(q.at(n, k), 0) << n << ' ' << k;
  }
}

TEST(quantised, refuses_what_it_cannot_keep) {
  std::vector<float> w(64, 1);
  w[5] = std::nanf("");
  EXPECT_THROW(Weights(1, 64, WeightFormat::int8, w), Error);
  EXPECT_THROW(Weights(1, 63, WeightFormat::int8, std::vector<float>(64)), Error);
}

struct Product {
  int64_t M, N, K;
  WeightFormat format;
  DType type = DType::f32;
  std::vector<float> x = normal(M * K, 3), bias = normal(N, 4), prior = normal(M * N, 5);
  Weights w{N, K, format, normal(N* K, 6)};

  static std::vector<std::byte> stored(const std::vector<float>& v, DType t) {
    std::vector<std::byte> out(v.size() * size_t(size_of(t)));
    for (size_t i = 0; i < v.size(); ++i)
      if (t == DType::bf16)
        reinterpret_cast<bf16*>(out.data())[i] = bf16(v[i]);
      else
        reinterpret_cast<float*>(out.data())[i] = v[i];
    return out;
  }
  // Rows [row, row + rows) of the product.
  std::vector<std::byte> run(Threads& threads, Isa isa, int64_t row, int64_t rows) {
    Scratch scratch;
    std::vector<std::byte> c = stored(prior, type), xs = stored(x, type), bs = stored(bias, type);
    c = {c.begin() + row * N * size_of(type), c.begin() + (row + rows) * N * size_of(type)};
    gemm_quantised(threads, scratch, gemm_table(isa),
                   {.c = c.data(),
                    .a = xs.data() + row * K * size_of(type),
                    .b = w.memory.data(),
                    .m = rows,
                    .n = N,
                    .k = K,
                    .lda = K,
                    .ldb = K,
                    .ldc = N,
                    .tb = true,
                    .c_type = type,
                    .ab_type = type,
                    .bias = bs.data(),
                    .residual = c.data()});
    return c;
  }
  std::vector<float> wanted() {
    std::vector<std::byte> xs = stored(x, type), bs = stored(bias, type), ps = stored(prior, type);
    std::vector<float> c(size_t(M * N));
    Stream s;
    const auto tensor = [&](std::vector<std::byte>& v, Shape shape) {
      return Tensor{v.data(), shape, type};
    };
    reference_kernels().gemm_quantised(
        s, {.c = {reinterpret_cast<std::byte*>(c.data()), {M, N}, DType::f32},
            .a = tensor(xs, {M, K}),
            .w = {w.memory.data(), {w.layout.bytes()}, DType::u8},
            .bias = tensor(bs, {N}),
            .prior = tensor(ps, {M, N}),
            .spec = {.tb = true}});
    return c;
  }
  void check(Threads& threads, Isa isa) {
    const std::vector<std::byte> got = run(threads, isa, 0, M);
    const std::vector<float> want = wanted();
    const double step = type == DType::bf16 ? 1.0 / 200 : 2e-6;
    for (int64_t i = 0; i < M * N; ++i) {
      const float g = type == DType::bf16 ? float(reinterpret_cast<const bf16*>(got.data())[i])
                                          : reinterpret_cast<const float*>(got.data())[i];
      ASSERT_NEAR(g, want[size_t(i)], step * (std::abs(want[size_t(i)]) + 4))
          << name(isa) << ' ' << to_string(format) << ' ' << M << 'x' << N << 'x' << K << " at "
          << i / N << ", " << i % N;
    }
  }
};

class Quantised : public testing::TestWithParam<Isa> {
 protected:
  Threads threads_{2};
};

constexpr WeightFormat formats[] = {WeightFormat::int8, WeightFormat::int4};

TEST_P(Quantised, odd_shapes) {
  for (const WeightFormat f : formats)
    for (const DType t : {DType::f32, DType::bf16})
      for (const int64_t m : {1, 2, 5, 8, 9, 16, 33})
        for (const auto& [n, k] :
             {std::pair<int64_t, int64_t>{1, 1}, {16, 64}, {37, 131}, {81, 96}})
          Product{m, n, k, f, t}.check(threads_, GetParam());
}

TEST_P(Quantised, more_rows_than_a_block) {
  for (const WeightFormat f : formats) Product{520, 70, 70, f}.check(threads_, GetParam());
}

// The largest sums there can be: every product at its end of the range.
TEST_P(Quantised, extremes_do_not_saturate) {
  for (const WeightFormat f : formats)
    for (const int64_t m : {1, 20}) {
      Product p{m, 3, 4096, f};
      for (size_t i = 0; i < p.x.size(); ++i) p.x[i] = i / 4096 % 2 ? -1.0f : 1.0f;
      p.w = Weights(3, 4096, f, std::vector<float>(3 * 4096, -1.0f));
      p.check(threads_, GetParam());
    }
}

TEST_P(Quantised, rows_keep_their_bits) {
  Threads three(3);
  for (const WeightFormat f : formats)
    for (const DType t : {DType::f32, DType::bf16}) {
      Product p{67, 90, 200, f, t};
      const std::vector<std::byte> all = p.run(threads_, GetParam(), 0, p.M);
      EXPECT_EQ(all, p.run(three, GetParam(), 0, p.M));
      // Sums are whole numbers: the plainest set has the same bits.
      EXPECT_EQ(all, p.run(threads_, usable_isas()[0], 0, p.M));
      for (const auto& [row, rows] : {std::pair<int64_t, int64_t>{0, 1},
                                      {5, 1},
                                      {3, 2},
                                      {60, 7},
                                      {10, 8},
                                      {1, 9},
                                      {30, 33}}) {
        const auto begin = all.begin() + row * p.N * size_of(t);
        EXPECT_EQ(std::vector<std::byte>(begin, begin + rows * p.N * size_of(t)),
                  p.run(threads_, GetParam(), row, rows))
            << row << " + " << rows;
      }
    }
}

TEST_P(Quantised, rows_that_are_not_numbers_stay_so) {
  Product p{12, 20, 70, WeightFormat::int8};
  p.x[size_t(3 * p.K + 7)] = std::nanf("");
  p.x[size_t(5 * p.K + 69)] = -std::numeric_limits<float>::infinity();
  std::fill_n(p.x.begin() + 6 * p.K, p.K, 0.0f);
  const std::vector<std::byte> c = p.run(threads_, GetParam(), 0, p.M);
  for (int64_t i = 0; i < p.M * p.N; ++i) {
    const float x = reinterpret_cast<const float*>(c.data())[i];
    const int64_t row = i / p.N;
    EXPECT_EQ(std::isnan(x), row == 3 || row == 5) << row;
    if (row == 6) { EXPECT_EQ(x, p.bias[size_t(i % p.N)] + p.prior[size_t(i)]); }
  }
}

// Experts whose matrices are packed one after another: each row has the bits of a product with the
// matrix of its expert alone, whatever rows the others have.
TEST_P(Quantised, groups_are_products_of_their_own) {
  Scratch scratch;
  for (const WeightFormat f : formats)
    for (const DType t : {DType::f32, DType::bf16})
      for (const auto& [N, K] : {std::pair<int64_t, int64_t>{16, 40}, {48, 100}, {80, 64}}) {
        const std::vector<int64_t> sizes = {3, 0, 1, 17, 0, 9};
        const int64_t G = int64_t(sizes.size()), R = 30;
        Product all{R, G * N, K, f, t};
        const std::vector<std::byte> x = Product::stored(all.x, t);
        int64_t row = 0;
        for (int64_t g = 0; g < G; ++g) {
          const int64_t rows = sizes[size_t(g)];
          const auto begin = all.w.memory.data();
          Product own{rows, N, K, f, t};
          const std::vector<float> w = normal(G * N * K, 6);
          own.w = Weights(N, K, f, {w.begin() + g * N * K, w.begin() + (g + 1) * N * K});
          std::vector<std::byte> c[2];
          for (int i = 0; i < 2; ++i) {
            c[i].resize(size_t(rows * N * size_of(t)));
            gemm_quantised(threads_, scratch, gemm_table(GetParam()),
                           {.c = c[i].data(),
                            .a = x.data() + row * K * size_of(t),
                            .b = i ? own.w.memory.data() : begin,
                            .m = rows,
                            .n = N,
                            .k = K,
                            .lda = K,
                            .ldb = K,
                            .ldc = N,
                            .b_row = i ? 0 : g * N,
                            .tb = true,
                            .c_type = t,
                            .ab_type = t});
          }
          EXPECT_EQ(c[0], c[1]) << g;
          row += rows;
        }
        EXPECT_EQ(row, R);
      }
}

INSTANTIATE_TEST_SUITE_P(cpu, Quantised, testing::ValuesIn(usable_isas()),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace hearth
