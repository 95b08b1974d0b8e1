// Kernels that also sum the columns of what they write, the gradient of a bias: products with the
// slope of an activation and gradients of norms, against sums in double of their own results. Each
// variant of our own products, cuBLASLt, and cards without the kernel; sums that replace what is
// there and sums that are added to it; the same bits in every run.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "held.h"

namespace hearth {
namespace {

using test::card;
using test::consumer_card;
using test::Held;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Compares sums with those of the rows of `c`, each of which was rounded to bf16 after it was
// added.
void expect_sums(const std::vector<float>& got, const std::vector<float>& before, float alpha,
                 const std::vector<float>& c) {
  const size_t width = got.size(), rows = c.size() / width;
  for (size_t j = 0; j < width; ++j) {
    double sum = 0, size = 0;
    for (size_t i = 0; i < rows; ++i) {
      const double v = c[i * width + j];
      sum += v, size += v * v;
    }
    const double want = double(before[j]) + alpha * sum;
    // Roundings of single elements, at most 2^-8 of each, add up like a random walk.
    ASSERT_NEAR(got[j], want, std::sqrt(size) / 64 + 1e-5 * std::sqrt(double(rows)) + 1e-4)
        << "column " << j << " of " << width << ", " << rows << " rows";
  }
}

// Whether one kernel computes both, or two do. Two give the sums of rounded values.
enum class Joined : uint8_t { no, yes, either };

void expect_joined(Backend& b, Joined joined, const Tensor& x, const std::vector<float>& got) {
  if (joined == Joined::either) return;
  const auto width = int64_t(got.size());
  Held sums(b, {width}, DType::f32), parts(b, {row_parts, width}, DType::f32);
  b.kernels().column_sum(b.stream(), {.out = sums.t, .parts = parts.t, .x = x});
  EXPECT_EQ(same_bits(got, sums.read()), joined == Joined::no)
      << (joined == Joined::yes ? "expected one kernel" : "expected two kernels");
}

// Sums of one kernel, from nothing and added to what is there, twice each. `prepare` comes before
// each launch.
template <class Prepare, class Launch>
void expect_sums_of(Backend& b, Held& result, int64_t width, Joined joined, const Prepare& prepare,
                    const Launch& launch) {
  Held sums(b, {width}, DType::f32), parts(b, {row_parts, width}, DType::f32);
  const std::vector<float> unwritten(size_t(width), NAN);
  std::vector<float> before(size_t(width), 0);
  std::vector<float> first_sums;
  for (const bool add : {false, true}) {
    const float alpha = add ? 0.5f : 1;
    for (int run = 0; run < 2; ++run) {
      sums.fill(add ? before : unwritten);
      prepare();
      launch(ColumnSumArgs{
          .out = sums.t, .parts = parts.t, .x = result.t, .alpha = alpha, .add = add});
      const std::vector<float> got = sums.read();
      if (run == 1) {
        EXPECT_TRUE(same_bits(got, first_sums)) << "expected the bits of the first run";
        continue;
      }
      expect_sums(got, before, alpha, result.read());
      if (testing::Test::HasFatalFailure()) return;
      if (!add) expect_joined(b, joined, result.t, got);
      first_sums = got;
    }
    for (size_t j = 0; j < before.size(); ++j) before[j] = float(j % 7) - 3;
  }
}

void spoil(Held& h) { h.fill(std::vector<float>(size_t(h.t.numel()), NAN)); }

bool on_hopper() { return cuda_card(0).major == 9; }

struct Slope {
  int64_t M, N, K;
  Act act = Act::gelu_tanh;
  float alpha = 1;
};

// A product on a backend.
struct SlopeOn {
  SlopeOn(Backend& backend, const Slope& z)
      : b(backend),
        a(b, {z.M, z.K}, DType::bf16),
        w(b, {z.K, z.N}, DType::bf16),
        aux(b, {z.M, z.N}, DType::bf16),
        c(b, {z.M, z.N}, DType::bf16) {
    std::mt19937 random{uint32_t(z.M * 31 + z.N * 7 + z.K)};
    for (Held* h : {&a, &w, &aux})
      h->fill(test::rounded(size_t(h->t.numel()), DType::bf16, random));
    args = {.c = c.t,
            .aux = aux.t,
            .a = a.t,
            .b = w.t,
            .spec = {.alpha = z.alpha, .act = z.act, .act_slope = true}};
  }
  void launch(const ColumnSumArgs& sums) { b.kernels().gemm_sums(b.stream(), args, sums); }
  Backend& b;
  Held a, w, aux, c;
  GemmArgs args;
};

void expect_slope(Backend& b, const Slope& z, Joined joined) {
  SlopeOn at(b, z);
  expect_sums_of(
      b, at.c, z.N, joined, [&] { spoil(at.c); },
      [&](const ColumnSumArgs& sums) { at.launch(sums); });
}

constexpr Slope slopes[] = {{128, 128, 8},
                            {136, 264, 72, Act::relu2},
                            {392, 136, 328, Act::gelu_tanh, 0.5f},
                            {1000, 520, 64},
                            {4168, 1032, 136},
                            {2048, 3072, 768},
                            {1024, 6400, 1600, Act::relu2}};

TEST(CudaColumnSums, OfOurOwnProducts) {
  HEARTH_NEEDS_A_CARD();
  for (const Slope& z : slopes)
    for (int variant = 0; variant < 3; ++variant) {
      SCOPED_TRACE(fmt::format("{} x {} x {}, variant {}", z.M, z.N, z.K, variant));
      expect_slope(test::own_products_card(variant), z, on_hopper() ? Joined::yes : Joined::no);
    }
}

// A backend that measures, one without the kernel, and products that are too small for it.
TEST(CudaColumnSums, OfOtherProducts) {
  HEARTH_NEEDS_A_CARD();
  for (Backend* b : {&card(), &consumer_card()})
    for (const Slope& z : {Slope{520, 264, 136}, Slope{8, 64, 32}, Slope{40, 24, 16, Act::relu2}}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", z.M, z.N, z.K));
      expect_slope(*b, z, b == &card() && z.M > 64 ? Joined::either : Joined::no);
    }
}

// Choices are made by running the product, where the sums may not be added more than once.
TEST(CudaColumnSums, TuningAddsOnce) {
  HEARTH_NEEDS_A_CARD();
  std::string folder = (std::filesystem::temp_directory_path() / "hearth-tuning-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string kept = std::getenv("HEARTH_CACHE");  // own_tuning.cpp sets it
  setenv("HEARTH_CACHE", folder.c_str(), 1);
  const auto untuned = make_cuda_backend({});
  setenv("HEARTH_CACHE", kept.c_str(), 1);
  const Slope z{392, 264, 136};
  SlopeOn at(*untuned, z);
  Held sums(*untuned, {z.N}, DType::f32), parts(*untuned, {row_parts, z.N}, DType::f32);
  const std::vector<float> before(size_t(z.N), 3);
  sums.fill(before);
  at.launch({.out = sums.t, .parts = parts.t, .x = at.c.t, .add = true});
  expect_sums(sums.read(), before, 1, at.c.read());
  std::filesystem::remove_all(folder);
}

struct NormCase {
  int64_t rows, width;
  Norm kind = Norm::layer;
  bool gain = true, prior = true, bias = true;
  DType dtype = DType::bf16;
  enum Over : uint8_t { none, dy, prior_too } over = none;  // what dx overwrites
};

void expect_norm(Backend& b, const NormCase& z, Joined joined) {
  std::mt19937 random{uint32_t(z.rows * 31 + z.width)};
  const Shape shape{z.rows, z.width};
  Held x(b, shape, z.dtype), dy(b, shape, z.dtype), prior(b, shape, z.dtype);
  Held gain(b, {z.width}, z.dtype), y(b, shape, z.dtype), apart(b, shape, z.dtype);
  Held stat(b, {z.rows, 2}, DType::f32), dgain(b, {z.width}, DType::f32);
  Held dbias(b, {z.width}, DType::f32), parts(b, {2 * row_parts, z.width}, DType::f32);
  const auto draw = [&](const Held& h) {
    return test::rounded(size_t(h.t.numel()), DType::bf16, random);
  };
  x.fill(draw(x));
  gain.fill(draw(gain));
  const std::vector<float> gradient = draw(dy), before = draw(prior);
  Held& dx = z.over == NormCase::dy ? dy : z.over == NormCase::prior_too ? prior : apart;
  const auto prepare = [&] {
    spoil(apart);
    dy.fill(gradient);
    prior.fill(before);
  };
  const NormSpec spec{.kind = z.kind};
  const Tensor none{}, scale = z.gain ? gain.t : none;
  b.kernels().norm(b.stream(), {.y = y.t, .stat = stat.t, .x = x.t, .gain = scale, .spec = spec});
  const NormBwdArgs args{.dx = dx.t,
                         .dgain = z.gain ? dgain.t : none,
                         .dbias = z.bias ? dbias.t : none,
                         .parts = z.gain || z.bias ? parts.t : none,
                         .dy = dy.t,
                         .x = x.t,
                         .gain = scale,
                         .stat = stat.t,
                         .prior = z.prior ? prior.t : none,
                         .spec = spec};
  expect_sums_of(b, dx, z.width, joined, prepare, [&](const ColumnSumArgs& sums) {
    b.kernels().norm_bwd_sums(b.stream(), args, sums);
  });
  // The other results have the bits of a gradient without sums.
  const std::vector<float> with = dx.read(), gains = dgain.read(), biases = dbias.read();
  prepare();
  b.kernels().norm_bwd(b.stream(), args);
  EXPECT_TRUE(same_bits(dx.read(), with));
  if (z.gain) { EXPECT_TRUE(same_bits(dgain.read(), gains)); }
  if (z.bias) { EXPECT_TRUE(same_bits(dbias.read(), biases)); }
}

TEST(CudaColumnSums, OfGradientsOfNorms) {
  HEARTH_NEEDS_A_CARD();
  const NormCase rms{.rows = 333, .width = 512, .kind = Norm::rms};
  NormCase over_dy = rms, over_prior = rms, halves = rms, floats = rms;
  over_dy.over = NormCase::dy, over_prior.over = NormCase::prior_too;
  halves.dtype = DType::f16, floats.dtype = DType::f32;
  const NormCase all[] = {{1, 768},
                          {5000, 768},
                          rms,
                          over_dy,
                          over_prior,
                          halves,
                          floats,
                          {1000, 1600, Norm::layer, true, false},
                          {70, 1000, Norm::rms, false, true, false},
                          {257, 40},
                          {300, 77, Norm::layer, true, true, false},
                          {40, 6400}};
  for (Backend* b : {&card(), &consumer_card()}) {
    for (const NormCase& z : all) {
      SCOPED_TRACE(
          fmt::format("{} x {}, {}, over {}", z.rows, z.width, to_string(z.dtype), int(z.over)));
      expect_norm(*b, z,
                  z.dtype == DType::f32 || b == &consumer_card() ? Joined::either : Joined::yes);
    }
    expect_norm(*b, {9, 20000, Norm::rms, true, true, false}, Joined::no);
  }
}

}  // namespace
}  // namespace hearth
