// The grouped products of a mixture of experts against sums in double of the same inputs: by wgmma
// on Hopper, by mma.sync, and by plain FMAs. Also: the same bits in every run, a row's bits do not
// depend on other rows, values of other groups never leak into a gradient, replay in a graph.
#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "held.h"

namespace hearth {
namespace {

using test::card;
using test::consumer_card;
using test::Held;
using test::HeldInts;

struct Case {
  std::vector<int> sizes;  // rows of each group
  int64_t N, K;
  bool gathers = false;
  bool tb = true;  // products only
  DType dtype = DType::bf16;
  bool add = false;        // gradients only
  DType out = DType::f32;  // gradients only
  int64_t groups() const { return int64_t(sizes.size()); }
  int64_t rows() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t(0)); }
  int64_t tokens() const { return gathers ? rows() / 2 + 3 : rows(); }
};

std::string name_of(const Case& z, Backend& b) {
  std::string sizes;
  for (size_t i = 0; i < std::min<size_t>(z.sizes.size(), 8); ++i)
    sizes += fmt::format("{}{}", i ? "," : "", z.sizes[i]);
  return fmt::format("{}: {} groups of {}.. N {} K {} {}{}{} {} on {}",
                     &b == &consumer_card() ? "mma.sync" : "best", z.groups(), sizes, z.N, z.K,
                     z.gathers ? "gathered " : "", z.tb ? "tb " : "", z.add ? "add" : "",
                     to_string(z.dtype), b.describe());
}

// Values exact in the dtype.
std::vector<float> values(int64_t n, DType d, std::mt19937& random) {
  if (d != DType::f32) return test::rounded(size_t(n), d, random);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(random);
  return x;
}

// Random operands on the host. a: rows of activations; other: b of a product, dc of a gradient.
struct Inputs {
  Inputs(const Case& z, bool gradient, uint32_t seed = 0) {
    std::mt19937 random{uint32_t(z.N * 31 + z.K * 7 + z.rows()) + seed};
    a = values(z.tokens() * z.K, z.dtype, random);
    other = values(gradient ? z.rows() * z.N : z.groups() * z.N * z.K, z.dtype, random);
    if (gradient) prior = values(z.groups() * z.N * z.K, z.out, random);
    offsets = {0};
    for (const int n : z.sizes) offsets.push_back(offsets.back() + n);
    std::uniform_int_distribution<int> any(0, std::max(int(z.tokens()) - 1, 0));
    for (int64_t r = 0; r < z.rows(); ++r) gather.push_back(z.gathers ? any(random) : int(r));
  }
  std::vector<float> a, other, prior;
  std::vector<int> offsets, gather;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> nans(int64_t n) { return std::vector<float>(size_t(n), NAN); }

// A product on a backend with its operands.
struct Product {
  Product(Backend& b, const Case& z, const Inputs& x)
      : backend(b),
        a(b, {z.tokens(), z.K}, z.dtype),
        w(b, z.tb ? Shape{z.groups(), z.N, z.K} : Shape{z.groups(), z.K, z.N}, z.dtype),
        c(b, {z.rows(), z.N}, z.dtype),
        offsets(b, x.offsets),
        gather(b, x.gather),
        args{.c = c.t,
             .a = a.t,
             .b = w.t,
             .offsets = offsets.t,
             .gather = z.gathers ? gather.t : Tensor{},
             .tb = z.tb} {
    a.fill(x.a);
    w.fill(x.other);
  }
  std::vector<float> run() {
    c.fill(nans(c.t.numel()));  // what is not written shows
    launch();
    return c.read();
  }
  void launch() { backend.kernels().grouped_gemm(backend.stream(), args); }

  Backend& backend;
  Held a, w, c;
  HeldInts offsets, gather;
  GroupedGemmArgs args;
};

std::vector<float> product_on(Backend& b, const Case& z, const Inputs& x) {
  Product p(b, z, x);
  const std::vector<float> first = p.run();
  for (int run = 0; run < 2; ++run) EXPECT_TRUE(same_bits(p.run(), first)) << "other bits";
  return first;
}

std::vector<float> gradient_on(Backend& b, const Case& z, const Inputs& x) {
  Held a(b, {z.tokens(), z.K}, z.dtype), dc(b, {z.rows(), z.N}, z.dtype);
  Held db(b, {z.groups(), z.N, z.K}, z.out);
  const HeldInts offsets(b, x.offsets), gather(b, x.gather);
  a.fill(x.a);
  dc.fill(x.other);
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {
    db.fill(z.add ? x.prior : nans(db.t.numel()));
    b.kernels().grouped_gemm_weights(b.stream(), {.db = db.t,
                                                  .dc = dc.t,
                                                  .a = a.t,
                                                  .offsets = offsets.t,
                                                  .gather = z.gathers ? gather.t : Tensor{},
                                                  .add = z.add});
    const std::vector<float> got = db.read();
    if (run == 0) first = got;
    EXPECT_TRUE(same_bits(got, first)) << "other bits in run " << run;
  }
  return first;
}

// Half a unit in the last place, relative, and some room.
double rounding(DType d) {
  return d == DType::bf16 ? 1.0 / 256 : d == DType::f16 ? 1.0 / 2048 : 1e-6;
}

// Counts wrong elements and says where the first is.
struct Wrong {
  int64_t count = 0;
  std::string first = {};
  template <class Where>
  void expect(double have, double want, double allowed, Where where) {
    if (std::abs(have - want) <= allowed) return;
    if (count++ == 0) first = fmt::format("{}: expected {}, got {}", where(), want, have);
  }
  ~Wrong() { EXPECT_EQ(count, 0) << first; }
};

// Every `step`-th row, and those at the ends of groups.
void expect_rows(const Case& z, const Inputs& x, const std::vector<float>& got, int64_t step) {
  Wrong wrong;
  for (int64_t g = 0; g < z.groups(); ++g) {
    const int64_t begin = x.offsets[size_t(g)], end = x.offsets[size_t(g + 1)];
    const float* const b = x.other.data() + g * z.N * z.K;
    for (int64_t r = begin; r < end; ++r) {
      if ((r - begin) % step && r + 1 != end) continue;
      const float* const a = x.a.data() + x.gather[size_t(r)] * z.K;
      for (int64_t n = 0; n < z.N; ++n) {
        double want = 0;
        for (int64_t k = 0; k < z.K; ++k)
          want += double(a[k]) * double(z.tb ? b[n * z.K + k] : b[k * z.N + n]);
        const double allowed = rounding(z.dtype) * std::abs(want) + 1e-4 * std::sqrt(double(z.K));
        wrong.expect(got[size_t(r * z.N + n)], want, allowed, [&] {
          return fmt::format("group {} row {} of {} column {}", g, r - begin, end - begin, n);
        });
      }
    }
  }
}

void expect_gradient(const Case& z, const Inputs& x, const std::vector<float>& got, int64_t step) {
  Wrong wrong;
  std::vector<double> want(static_cast<size_t>(z.K));
  for (int64_t g = 0; g < z.groups(); ++g) {
    const int64_t begin = x.offsets[size_t(g)], end = x.offsets[size_t(g + 1)];
    for (int64_t n = 0; n < z.N; n += n % 128 == 126 ? 1 : step) {
      const float* const prior = x.prior.data() + (g * z.N + n) * z.K;
      for (int64_t k = 0; k < z.K; ++k) want[size_t(k)] = z.add ? prior[k] : 0;
      for (int64_t r = begin; r < end; ++r) {
        const double dc = x.other[size_t(r * z.N + n)];
        const float* const a = x.a.data() + x.gather[size_t(r)] * z.K;
        for (int64_t k = 0; k < z.K; ++k) want[size_t(k)] += dc * double(a[k]);
      }
      for (int64_t k = 0; k < z.K; ++k)
        wrong.expect(
            got[size_t((g * z.N + n) * z.K + k)], want[size_t(k)],
            rounding(z.out) * std::abs(want[size_t(k)]) + 1e-4 * std::sqrt(double(end - begin)),
            [&] {
              return fmt::format("group {} of {} rows: row {} column {}", g, end - begin, n, k);
            });
    }
  }
}

void expect_product(const Case& z, int64_t step = 1) {
  const Inputs x(z, false);
  for (Backend* b : {&card(), &consumer_card()}) {
    SCOPED_TRACE(name_of(z, *b));
    expect_rows(z, x, product_on(*b, z, x), step);
  }
}

void expect_weights(const Case& z, int64_t step = 1) {
  const Inputs x(z, true);
  for (Backend* b : {&card(), &consumer_card()}) {
    SCOPED_TRACE(name_of(z, *b));
    expect_gradient(z, x, gradient_on(*b, z, x), step);
  }
}

// Group sizes: full tiles, parts of tiles, empty groups at the ends and between, one group, groups
// of one row.
const std::vector<std::vector<int>> all_sizes = {
    {128},
    {1},
    {0, 64, 0},
    {0, 0, 300},
    {129, 0, 127, 128, 1, 0},
    {1, 1, 1, 1, 1, 1, 1, 1, 1},
    {63, 65, 200, 0, 5, 257, 0, 0},
};

TEST(CudaGrouped, OneTile) {
  HEARTH_NEEDS_A_CARD();
  for (const bool tb : {true, false})
    for (const bool gathers : {false, true})
      for (const int64_t K : {64, 128, 256, 320, 8}) expect_product({{128}, 256, K, gathers, tb});
}

TEST(CudaGrouped, OneTileOfAGradient) {
  HEARTH_NEEDS_A_CARD();
  for (const bool gathers : {false, true})
    for (const int rows : {64, 256, 320, 3, 65})
      expect_weights({.sizes = {rows}, .N = 128, .K = 256, .gathers = gathers});
}

TEST(CudaGrouped, Products) {
  HEARTH_NEEDS_A_CARD();
  for (const std::vector<int>& sizes : all_sizes)
    for (const auto& [N, K] : {std::pair<int64_t, int64_t>{256, 64}, {264, 72}, {8, 200}, {520, 8}})
      for (const bool gathers : {false, true})
        for (const bool tb : {true, false}) expect_product({sizes, N, K, gathers, tb});
}

TEST(CudaGrouped, Gradients) {
  HEARTH_NEEDS_A_CARD();
  for (const std::vector<int>& sizes : all_sizes)
    for (const auto& [N, K] :
         {std::pair<int64_t, int64_t>{128, 256}, {136, 264}, {8, 72}, {264, 8}})
      for (const bool gathers : {false, true})
        for (const bool add : {false, true})
          expect_weights({.sizes = sizes, .N = N, .K = K, .gathers = gathers, .add = add});
}

// Sums in the dtype of the operands, with and without a prior.
TEST(CudaGrouped, GradientsOf16Bits) {
  HEARTH_NEEDS_A_CARD();
  for (const DType d : {DType::bf16, DType::f16})
    for (const bool add : {false, true})
      for (const int64_t K : {264, 45})
        expect_weights({.sizes = {63, 0, 200, 5},
                        .N = 136,
                        .K = K,
                        .gathers = true,
                        .dtype = d,
                        .add = add,
                        .out = d});
}

TEST(CudaGrouped, OtherTypesAndOddSizes) {
  HEARTH_NEEDS_A_CARD();
  const std::vector<int> sizes = {63, 0, 65, 200, 1};
  for (const bool gathers : {false, true})
    for (const DType d : {DType::f16, DType::f32, DType::bf16})
      for (const auto& [N, K] :
           {std::pair<int64_t, int64_t>{264, 72}, {33, 17}, {1, 1}, {72, 65}, {67, 72}}) {
        for (const bool tb : {true, false}) expect_product({sizes, N, K, gathers, tb, d});
        for (const bool add : {false, true})
          expect_weights(
              {.sizes = sizes, .N = N, .K = K, .gathers = gathers, .dtype = d, .add = add});
      }
}

// More tiles than a card has multiprocessors, so that every block takes several in turn, with fewer
// and with more stages than the ring has.
TEST(CudaGrouped, ManyTiles) {
  HEARTH_NEEDS_A_CARD();
  std::mt19937 random{7};
  for (const int64_t K : {64, 136, 256, 768}) {
    std::vector<int> sizes;
    for (int g = 0; g < 64; ++g) sizes.push_back(int(random() % 700));
    for (const bool gathers : {false, true})
      for (const bool tb : {true, false}) expect_product({sizes, 512, K, gathers, tb}, 97);
  }
}

TEST(CudaGrouped, ManyTilesOfGradients) {
  HEARTH_NEEDS_A_CARD();
  std::mt19937 random{8};
  for (const int most : {64, 300, 1200}) {
    std::vector<int> sizes;
    for (int g = 0; g < 48; ++g) sizes.push_back(int(random() % uint32_t(most)));
    for (const bool gathers : {false, true})
      for (const bool add : {false, true})
        expect_weights({.sizes = sizes, .N = 520, .K = 512, .gathers = gathers, .add = add}, 63);
  }
}

// More groups than the kernel for Hopper takes, and more than are sorted by size.
TEST(CudaGrouped, ManyGroups) {
  HEARTH_NEEDS_A_CARD();
  std::mt19937 random{9};
  for (const int groups : {300, 1000}) {
    std::vector<int> sizes;
    for (int g = 0; g < groups; ++g) sizes.push_back(int(random() % 3));
    for (const bool gathers : {false, true}) {
      expect_product({sizes, 72, 40, gathers, true});
      expect_weights({.sizes = sizes, .N = 72, .K = 40, .gathers = gathers});
    }
  }
}

// Each row alone in its group, and all rows of a call: the same bits, wherever a row lies in a tile
// and however long its group is.
TEST(CudaGrouped, RowsDoNotDependOnOtherRows) {
  HEARTH_NEEDS_A_CARD();
  for (Backend* b : {&card(), &consumer_card()})
    for (const DType d : {DType::bf16, DType::f16, DType::f32})
      for (const bool tb : {true, false})
        for (const int64_t K : {328, 77}) {
          Case all{{300, 7, 0, 190}, 264, K, true, tb, d};
          SCOPED_TRACE(name_of(all, *b));
          const Inputs x(all, false);
          const std::vector<float> want = product_on(*b, all, x);
          // Keep every row whose number `keeps` accepts, in the reverse order.
          const auto expect_part = [&](const char* what, auto keeps) {
            Case part = all;
            Inputs y = x;
            std::vector<int> from;
            y.gather.clear();
            for (size_t g = 0; g < all.sizes.size(); ++g) {
              part.sizes[g] = 0;
              for (int r = x.offsets[g + 1] - 1; r >= x.offsets[g]; --r)
                if (keeps(r)) from.push_back(r), ++part.sizes[g];
              y.offsets[g + 1] = int(from.size());
            }
            for (const int r : from) y.gather.push_back(x.gather[size_t(r)]);
            // The tensor a stays that of all rows.
            Held a(*b, {all.tokens(), K}, d), c(*b, {int64_t(from.size()), all.N}, d);
            Held w(*b, tb ? Shape{4, all.N, K} : Shape{4, K, all.N}, d);
            const HeldInts offsets(*b, y.offsets), gather(*b, y.gather);
            a.fill(x.a), w.fill(x.other), c.fill(nans(c.t.numel()));
            b->kernels().grouped_gemm(
                b->stream(),
                {.c = c.t, .a = a.t, .b = w.t, .offsets = offsets.t, .gather = gather.t, .tb = tb});
            const std::vector<float> got = c.read();
            int64_t wrong = 0;
            for (size_t i = 0; i < from.size(); ++i)
              wrong += std::memcmp(got.data() + int64_t(i) * all.N,
                                   want.data() + int64_t(from[i]) * all.N,
                                   size_t(all.N) * sizeof(float)) != 0;
            EXPECT_EQ(wrong, 0) << what;
          };
          expect_part("all rows", [](int) { return true; });
          expect_part("every third row", [](int r) { return r % 3 == 0; });
          expect_part("one row", [](int r) { return r == 217; });
          expect_part("rows from 250 on", [](int r) { return r >= 250; });
        }
}

// A row of infinities and NaN belongs to one group: gradients and rows of others stay finite.
TEST(CudaGrouped, OtherGroupsNeverLeak) {
  HEARTH_NEEDS_A_CARD();
  const Case z{.sizes = {70, 130, 33}, .N = 136, .K = 264};
  for (Backend* b : {&card(), &consumer_card()}) {
    SCOPED_TRACE(name_of(z, *b));
    Inputs x(z, true);
    // The first and the last row of group 1.
    for (const int64_t row : {70, 199}) {
      for (int64_t n = 0; n < z.N; ++n) x.other[size_t(row * z.N + n)] = NAN;
      for (int64_t k = 0; k < z.K; ++k) x.a[size_t(row * z.K + k)] = INFINITY;
    }
    const std::vector<float> got = gradient_on(*b, z, x);
    for (const int64_t g : {0, 2})
      for (int64_t i = 0; i < z.N * z.K; ++i)
        ASSERT_TRUE(std::isfinite(got[size_t(g * z.N * z.K + i)])) << "group " << g << " at " << i;
    Inputs y(z, false);
    for (int64_t k = 0; k < z.K; ++k) y.a[size_t(70 * z.K + k)] = y.a[size_t(199 * z.K + k)] = NAN;
    const std::vector<float> c = product_on(*b, z, y);
    for (int64_t r = 0; r < z.rows(); ++r)
      ASSERT_EQ(std::isfinite(c[size_t(r * z.N)]), r != 70 && r != 199) << "row " << r;
  }
}

// A captured launch reads the offsets of the replay.
TEST(CudaGrouped, ReplayWithOtherOffsets) {
  HEARTH_NEEDS_A_CARD();
  for (Backend* b : {&card(), &consumer_card()}) {
    Case z{{100, 200, 0, 212}, 264, 136, true, true};
    Product p(*b, z, Inputs(z, false));
    p.run();
    const std::unique_ptr<Replay> graph = b->capture([&] { p.launch(); });
    if (!graph) continue;  // HEARTH_GRAPH=0
    for (const std::vector<int>& sizes :
         {std::vector<int>{512, 0, 0, 0}, {0, 1, 511, 0}, {129, 128, 127, 128}}) {
      z.sizes = sizes;
      SCOPED_TRACE(name_of(z, *b));
      const Inputs x(z, false, 5);
      p.a.fill(x.a), p.w.fill(x.other);
      p.offsets.fill(x.offsets), p.gather.fill(x.gather);
      p.c.fill(nans(p.c.t.numel()));
      graph->run();
      expect_rows(z, x, p.c.read(), 1);
    }
  }
}

// No rows at all: a product does nothing, and a gradient becomes zero or stays.
TEST(CudaGrouped, NoRows) {
  HEARTH_NEEDS_A_CARD();
  for (Backend* b : {&card(), &consumer_card()})
    for (const bool add : {false, true}) {
      const Case z{.sizes = {0, 0, 0}, .N = 136, .K = 72, .add = add};
      const Inputs x(z, true);
      const std::vector<float> got = gradient_on(*b, z, x);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], add ? x.prior[i] : 0.0f);
      EXPECT_TRUE(product_on(*b, z, Inputs(z, false)).empty());
    }
}

}  // namespace
}  // namespace hearth
