// gemm() on every instruction set this machine can run, against a double reference: all layouts,
// types and epilogues, shapes around the edges of the tiles, and the promises about bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "cpu/gemm.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth {
namespace {

struct Random {
  uint64_t state = 1;
  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state >> 33);
  }
  float uniform() { return float(next()) / float(1u << 30) - 1.0f; }  // [-1, 1)
};

// A matrix of either type with its values as the kernel sees them.
struct Matrix {
  DType type = DType::f32;
  int64_t rows = 0, cols = 0, ld = 0;
  std::vector<std::byte> bytes;

  Matrix() = default;
  Matrix(DType t, int64_t r, int64_t c, int64_t pad = 0)
      : type(t), rows(r), cols(c), ld(c + pad), bytes(size_t(r * (c + pad) * size_of(t))) {}

  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
  float at(int64_t i, int64_t j) const {
    const int64_t e = i * ld + j;
    if (type == DType::bf16) return float(reinterpret_cast<const bf16*>(bytes.data())[e]);
    return reinterpret_cast<const float*>(bytes.data())[e];
  }
  void set(int64_t i, int64_t j, float v) {
    const int64_t e = i * ld + j;
    if (type == DType::bf16)
      reinterpret_cast<bf16*>(bytes.data())[e] = bf16(v);
    else
      reinterpret_cast<float*>(bytes.data())[e] = v;
  }
  void fill(Random& r) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < ld; ++j) set(i, j, j < cols ? r.uniform() : std::nanf(""));
  }
  void poison() { std::memset(bytes.data(), 0xff, bytes.size()); }  // NaN in both types
};

struct Case {
  int64_t m, n, k;
  bool ta = false;
  bool tb = false;
  DType ab = DType::f32, c = DType::f32;
  float alpha = 1.0f;
  bool bias = false;
  int residual = 0;  // 1: another matrix, 2: c itself
  int64_t pad = 0;   // extra elements in every leading dimension
  bool hook = false;
};

std::string describe(const Case& x) {
  return fmt::format("{}{} {}x{}x{} {}<-{} alpha {} bias {} residual {} pad {} hook {}",
                     x.ta ? 'T' : 'N', x.tb ? 'T' : 'N', x.m, x.n, x.k, to_string(x.c),
                     to_string(x.ab), x.alpha, x.bias, x.residual, x.pad, x.hook);
}

struct Kept {
  Matrix* before;
  static void square(const void* state, float* x, int64_t row, int64_t col, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      static_cast<const Kept*>(state)->before->set(row, col + j, x[j]);
      x[j] *= x[j];
    }
  }
};

struct Problem {
  Case x;
  Matrix a, b, bias, residual, c, before;

  explicit Problem(const Case& what, uint64_t seed = 1) : x(what) {
    Random r{seed};
    a = x.ta ? Matrix(x.ab, x.k, x.m, x.pad) : Matrix(x.ab, x.m, x.k, x.pad);
    b = x.tb ? Matrix(x.ab, x.n, x.k, x.pad) : Matrix(x.ab, x.k, x.n, x.pad);
    c = residual = Matrix(x.c, x.m, x.n, x.pad);
    bias = Matrix(x.ab, 1, x.n);
    before = Matrix(DType::f32, x.m, x.n);
    for (Matrix* m : {&a, &b, &bias, &residual}) m->fill(r);
  }

  void run(Threads& threads, Scratch& scratch, Isa isa) {
    c.poison();
    before.poison();
    if (x.residual == 2) c.bytes = residual.bytes;
    Kept kept{&before};
    gemm(threads, scratch, gemm_table(isa),
         {.c = c.data(),
          .a = a.data(),
          .b = b.data(),
          .m = x.m,
          .n = x.n,
          .k = x.k,
          .lda = a.ld,
          .ldb = b.ld,
          .ldc = c.ld,
          .ta = x.ta,
          .tb = x.tb,
          .c_type = x.c,
          .ab_type = x.ab,
          .alpha = x.alpha,
          .bias = x.bias ? bias.data() : nullptr,
          .residual = x.residual == 0   ? nullptr
                      : x.residual == 1 ? residual.data()
                                        : c.data(),
          .hook = x.hook ? Kept::square : nullptr,
          .hook_state = &kept});
  }

  double want(int64_t i, int64_t j, double* scale, double* linear) const {
    double s = 0, size = 0;
    for (int64_t k = 0; k < x.k; ++k) {
      const double p = double(x.ta ? a.at(k, i) : a.at(i, k)) * (x.tb ? b.at(j, k) : b.at(k, j));
      s += p;
      size += std::abs(p);
    }
    s = s * x.alpha + (x.bias ? bias.at(0, j) : 0.0f);
    size = size * std::abs(x.alpha) + 1;
    *linear = s;
    if (x.hook) size *= 2 * std::abs(s) + 1, s *= s;
    if (x.residual) s += residual.at(i, j);
    *scale = size;
    return s;
  }

  // Compares all elements of a small matrix and evenly spread ones of a large one.
  void check(std::string_view isa) const {
    const int64_t step = std::max<int64_t>(1, x.m * x.n * x.k / 500000);
    const double sums = 1e-6, rounding = x.c == DType::bf16 ? 1.0 / 256 : 1e-6;
    int wrong = 0;
    for (int64_t e = 0; e < x.m * x.n && wrong < 5; e += e + step < x.m * x.n ? step : 1) {
      double scale = 0, linear = 0;
      const int64_t i = e / x.n, j = e % x.n;
      const double w = want(i, j, &scale, &linear), got = c.at(i, j);
      const bool ok = std::abs(got - w) <= sums * scale + rounding * std::abs(w) &&
                      (!x.hook || std::abs(before.at(i, j) - linear) <= sums * scale * 2);
      if (!ok) {
        ++wrong;
        ADD_FAILURE() << isa << ' ' << describe(x) << " at (" << i << ", " << j << "): expected "
                      << w << ", got " << got;
      }
    }
    for (int64_t i = 0; i < x.m && wrong == 0; ++i)
      for (int64_t j = 0; j < x.n; ++j)
        if (std::isnan(c.at(i, j)) && ++wrong == 1)
          ADD_FAILURE() << isa << ' ' << describe(x) << ": (" << i << ", " << j << ") not written";
    for (int64_t i = 0; i < x.m && x.residual != 2; ++i)  // the padding is not ours
      for (int64_t j = x.n; j < c.ld; ++j) ASSERT_TRUE(std::isnan(c.at(i, j))) << describe(x);
  }
};

class Gemm : public testing::TestWithParam<Isa> {
 protected:
  void expect_right(const Case& x) {
    Problem p(x);
    p.run(threads_, scratch_, GetParam());
    p.check(name(GetParam()));
  }
  // The case in every layout and pair of types.
  void expect_all(Case x) {
    for (DType ab : {DType::f32, DType::bf16})
      for (DType c : {DType::f32, DType::bf16})
        for (int t = 0; t < 4; ++t) {
          x.ab = ab, x.c = c, x.ta = t & 1, x.tb = t & 2;
          expect_right(x);
        }
  }
  Threads threads_{2};
  Scratch scratch_;
};

TEST_P(Gemm, small_shapes) {
  Random r{7};
  const auto side = [&] { return 1 + int64_t(r.next() % 67); };
  for (int64_t s = 1; s <= 67; ++s) {
    const DType ab = s & 1 ? DType::f32 : DType::bf16, c = s & 2 ? DType::f32 : DType::bf16;
    for (int t = 0; t < 4; ++t) {
      const bool ta = (t & 1) != 0, tb = (t & 2) != 0;
      expect_right({.m = s, .n = side(), .k = side(), .ta = ta, .tb = tb, .ab = ab, .c = c});
      expect_right({.m = side(), .n = s, .k = t < 2 ? 1 : s, .ta = ta, .tb = tb, .ab = c, .c = ab});
    }
  }
}

TEST_P(Gemm, primes_across_blocks_of_k) {
  for (int64_t k : {1, 2, 31, 127, 257, 521, 1031})
    expect_all({.m = 37, .n = 41, .k = k, .pad = 3});
  expect_all({.m = 1, .n = 131, .k = 769});
  expect_all({.m = 211, .n = 97, .k = 263});
  expect_all({.m = 97, .n = 211, .k = 33});
}

TEST_P(Gemm, vocabulary_with_few_rows) {
  for (int64_t m : {1, 3}) {
    expect_right({.m = m, .n = 50257, .k = 64, .tb = true});
    expect_right({.m = m, .n = 50257, .k = 64, .tb = true, .ab = DType::bf16, .c = DType::bf16});
  }
  expect_right({.m = 5, .n = 7, .k = 50257});
  expect_right({.m = 5, .n = 7, .k = 50257, .ab = DType::bf16});
}

// More than one round of packing the shared operand: beyond 1 MiB where c is small.
TEST_P(Gemm, k_in_several_rounds) {
  for (DType ab : {DType::f32, DType::bf16})
    for (int t = 0; t < 4; ++t)
      expect_right({.m = 9,
                    .n = 10,
                    .k = 70001,
                    .ta = (t & 1) != 0,
                    .tb = (t & 2) != 0,
                    .ab = ab,
                    .alpha = 0.5f,
                    .bias = true,
                    .residual = 2});
}

TEST_P(Gemm, sides_longer_than_a_tile) {
  expect_right({.m = 1100, .n = 1050, .k = 5});
  expect_right({.m = 1100, .n = 1050, .k = 5, .ta = true, .ab = DType::bf16});
}

TEST_P(Gemm, empty_k_writes_the_epilogue) {
  expect_all({.m = 9, .n = 35, .k = 0, .bias = true, .residual = 1});
}

TEST_P(Gemm, epilogue) {
  for (int residual : {0, 1, 2})
    for (int b = 0; b < 8; ++b)
      expect_all({.m = 29,
                  .n = 45,
                  .k = 50,
                  .alpha = b & 1 ? 0.37f : 1.0f,
                  .bias = (b & 2) != 0,
                  .residual = residual,
                  .pad = 5,
                  .hook = (b & 4) != 0});
}

TEST_P(Gemm, same_bits_at_any_thread_count) {
  for (DType ab : {DType::f32, DType::bf16})
    for (int t = 0; t < 4; ++t) {
      Problem p({.m = 150,
                 .n = 333,
                 .k = 700,
                 .ta = (t & 1) != 0,
                 .tb = (t & 2) != 0,
                 .ab = ab,
                 .c = ab,
                 .bias = true});
      p.run(threads_, scratch_, GetParam());
      const std::vector<std::byte> two = p.c.bytes;
      for (int count : {1, 3, 5}) {
        Threads threads(count);
        p.run(threads, scratch_, GetParam());
        EXPECT_EQ(p.c.bytes, two) << describe(p.x) << " with " << count << " threads";
      }
    }
}

// Decode computes one row, training thousands: they must agree bit for bit. The first rows of the
// large problem are computed again with fewer rows, in the same layout.
TEST_P(Gemm, rows_do_not_depend_on_m) {
  for (DType ab : {DType::f32, DType::bf16})
    for (bool tb : {false, true}) {
      Problem big({.m = 300, .n = 259, .k = 1100, .tb = tb, .ab = ab, .bias = true});
      big.run(threads_, scratch_, GetParam());
      for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 32, 33, 64, 65, 299}) {
        Problem part = big;
        part.x.m = m;
        part.run(threads_, scratch_, GetParam());
        EXPECT_EQ(0, std::memcmp(part.c.data(), big.c.data(), size_t(m * big.c.ld * 4)))
            << describe(part.x);
      }
    }
}

// Decoding reads the weights where they lie: every number of rows that does so and the first that
// does not, at the edges of vectors, cache lines and blocks of k.
TEST_P(Gemm, few_rows_have_the_bits_of_many) {
  const int64_t ns[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 131};
  const int64_t ks[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 127, 255, 257, 511, 769};
  size_t i = 0;
  for (DType ab : {DType::f32, DType::bf16})
    for (int64_t k : ks)
      for (int turn = 0; turn < 4; ++turn) {
        const int64_t n = ns[i++ % std::size(ns)];
        Problem many({.m = 70, .n = n, .k = k, .tb = true, .ab = ab, .pad = turn}, i);
        many.run(threads_, scratch_, GetParam());
        many.check(name(GetParam()));
        for (int64_t m = 1; m <= 9; ++m) {
          Problem few = many;
          few.x.m = m;
          few.run(threads_, scratch_, GetParam());
          EXPECT_EQ(0, std::memcmp(few.c.data(), many.c.data(), size_t(m * few.c.ld * 4)))
              << describe(few.x);
        }
      }
}

// A sum that ends as -0 stays so: the places beyond an odd k add nothing, not even +0.
TEST_P(Gemm, few_rows_keep_the_sign_of_zero) {
  for (DType ab : {DType::f32, DType::bf16})
    for (int64_t k : {1, 3, 33, 257}) {
      Problem many({.m = 70, .n = 33, .k = k, .tb = true, .ab = ab});
      for (Matrix* x : {&many.a, &many.b})
        for (int64_t r = 0; r < x->rows; ++r)
          for (int64_t j = 0; j < k; ++j)
            x->set(r, j, x == &many.a ? 0x1p-100f : j == k - 1 ? -0x1p-100f : 0.0f);
      many.run(threads_, scratch_, GetParam());
      for (int64_t m : {1, 8}) {
        Problem few = many;
        few.x.m = m;
        few.run(threads_, scratch_, GetParam());
        EXPECT_EQ(0, std::memcmp(few.c.data(), many.c.data(), size_t(m * few.c.ld * 4)))
            << describe(few.x);
      }
    }
}

TEST_P(Gemm, few_rows_have_the_same_bits_at_any_thread_count) {
  for (DType ab : {DType::f32, DType::bf16})
    for (int64_t m : {1, 5, 8}) {
      Problem p({.m = m, .n = 1171, .k = 333, .tb = true, .ab = ab, .c = ab, .bias = true});
      p.run(threads_, scratch_, GetParam());
      const std::vector<std::byte> two = p.c.bytes;
      p.check(name(GetParam()));
      for (int count : {1, 3, 5, 40}) {
        Threads threads(count);
        p.run(threads, scratch_, GetParam());
        EXPECT_EQ(p.c.bytes, two) << describe(p.x) << " with " << count << " threads";
      }
    }
}

TEST_P(Gemm, nan_and_infinity_propagate) {
  const float inf = std::numeric_limits<float>::infinity();
  for (DType type : {DType::f32, DType::bf16}) {
    Problem p({.m = 35, .n = 50, .k = 70, .tb = true, .ab = type, .c = type});
    p.a.set(3, 69, std::nanf(""));
    p.a.set(20, 11, inf);
    p.b.set(49, 0, -inf);
    p.run(threads_, scratch_, GetParam());
    for (int64_t i = 0; i < 35; ++i)
      for (int64_t j = 0; j < 50; ++j) {
        const float got = p.c.at(i, j);
        if (i == 3)
          EXPECT_TRUE(std::isnan(got)) << i << ' ' << j;
        else if (i == 20 && j == 49)
          EXPECT_FALSE(std::isfinite(got));
        else if (i == 20)
          EXPECT_EQ(got, p.b.at(j, 11) > 0 ? inf : -inf) << j;
        else if (j == 49)
          EXPECT_EQ(got, p.a.at(i, 0) > 0 ? -inf : inf) << i;
        else
          EXPECT_TRUE(std::isfinite(got)) << i << ' ' << j;
      }
  }
}

TEST_P(Gemm, scratch_stops_growing) {
  expect_right({.m = 100, .n = 100, .k = 100});
  const int64_t bytes = scratch_.bytes();
  expect_right({.m = 100, .n = 100, .k = 100});
  expect_right({.m = 10, .n = 90, .k = 70});
  EXPECT_EQ(scratch_.bytes(), bytes);
}

INSTANTIATE_TEST_SUITE_P(cpu, Gemm, testing::ValuesIn(usable_isas()),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(gemm, refuses_what_it_cannot_do) {
  Threads threads(1);
  Scratch scratch;
  float x[4] = {};
  GemmProblem g{.c = x, .a = x, .b = x, .m = 2, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldc = 2};
  g.ab_type = DType::f16;
  EXPECT_THROW(gemm(threads, scratch, g), Error);
  g.ab_type = DType::f32;
  g.lda = 1;
  EXPECT_THROW(gemm(threads, scratch, g), Error);
}

}  // namespace
}  // namespace hearth
