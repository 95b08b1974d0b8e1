// How far an update of Muon is from the nearest orthogonal matrix, the polar factor by a singular
// value decomposition in double: tall, wide and square matrices, of every kernel path. The errors
// are those of five iterations; those of rounding are measured against the same iterations in
// double.
#include <fmt/format.h>

#include <numeric>

#include "unit/muon_case.h"
#include "unit/optimizer_case.h"

namespace hearth {
namespace {

using namespace muon_test;
using optim_test::Update;

// The decomposition of a matrix with at least as many rows as columns.
struct Svd {
  Matrix u, v;  // (R, C), (C, C)
  std::vector<double> sigma;

  Matrix polar() const { return u.times(v.transposed()); }
};

// Turns the columns p and q of x by an angle.
void turn(Matrix& x, int64_t p, int64_t q, double c, double s) {
  for (int64_t r = 0; r < x.R; ++r) {
    const double a = x.at(r, p), b = x.at(r, q);
    x.at(r, p) = c * a - s * b, x.at(r, q) = s * a + c * b;
  }
}

// One-sided Jacobi: turns pairs of columns until all are orthogonal.
Svd svd(Matrix a) {
  Svd d{std::move(a), {}, {}};
  Matrix& u = d.u;
  d.v = {u.C, u.C, std::vector<double>(size_t(u.C * u.C))};
  for (int64_t i = 0; i < u.C; ++i) d.v.at(i, i) = 1;
  for (bool turned = true; turned;) {
    turned = false;
    for (int64_t p = 0; p < u.C; ++p)
      for (int64_t q = p + 1; q < u.C; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (int64_t r = 0; r < u.R; ++r) {
          const double x = u.at(r, p), y = u.at(r, q);
          pp += x * x, qq += y * y, pq += x * y;
        }
        if (std::abs(pq) <= 1e-14 * std::sqrt(pp * qq)) continue;
        turned = true;
        const double z = (qq - pp) / (2 * pq);
        const double t = (z >= 0 ? 1 : -1) / (std::abs(z) + std::sqrt(1 + z * z));
        const double c = 1 / std::sqrt(1 + t * t);
        turn(u, p, q, c, c * t), turn(d.v, p, q, c, c * t);
      }
  }
  for (int64_t j = 0; j < u.C; ++j) {
    double square = 0;
    for (int64_t r = 0; r < u.R; ++r) square += u.at(r, j) * u.at(r, j);
    d.sigma.push_back(std::sqrt(square));
    for (int64_t r = 0; r < u.R; ++r) u.at(r, j) /= d.sigma.back();
  }
  return d;
}
Svd svd_of(const Matrix& a) { return svd(a.R < a.C ? a.transposed() : a); }
Matrix polar_factor(const Matrix& a) {
  return a.R < a.C ? svd_of(a).polar().transposed() : svd_of(a).polar();
}

Matrix random_matrix(int64_t R, int64_t C) {
  std::vector<float> x(size_t(R * C));
  draw(x, Init::normal(1), 7, fmt::format("{}x{}", R, C));
  return {R, C, {x.begin(), x.end()}};
}

// Singular values from 1 down to `least`, equally far apart in their logarithm.
Matrix with_spectrum(int64_t R, int64_t C, double least) {
  const bool wide = R < C;
  Svd d = svd_of(random_matrix(R, C));
  const int64_t n = d.u.C;
  for (int64_t j = 0; j < n; ++j)
    for (int64_t r = 0; r < d.u.R; ++r) d.u.at(r, j) *= std::pow(least, double(j) / double(n - 1));
  return wide ? d.polar().transposed() : d.polar();
}

double distance(const Matrix& a, const Matrix& b) { return a.plus(1, b, -1).norm() / b.norm(); }

// The orthogonal matrix by which an update with the gradient g moves a weight that is 0.
Matrix moved(Backend& backend, DType dtype, bool exact, const Matrix& g) {
  UpdateSpec spec{.optimizer = OptimizerKind::muon, .decay = 0, .exact_f32 = exact};
  spec.muon.muon_scale = MuonScale::spectral;
  Update u(backend, dtype, spec, {{"m", {g.R, g.C}, Init::zeros(), Group::matrix}});
  u.store.set(Part::grad, "m", std::vector<float>(g.x.begin(), g.x.end()));
  u.run(Scalars{.lr = 1, .momentum = 0});
  const std::vector<float> w =
      u.store.values(u.store.has_master() ? Part::master : Part::weight, "m");
  Matrix y{g.R, g.C, {w.begin(), w.end()}};
  for (double& x : y.x) x /= -std::sqrt(std::max(1.0, double(g.R) / double(g.C)));
  return y;
}

// Distances relative to the result.
struct Case {
  int64_t R, C;
  double least;  // singular value, relative to the largest; 0: a random matrix
  double polar;  // of the five iterations in exact arithmetic from the polar factor
  // Limits of the distance from the iterations in double, in fp32 by products of the shorter side
  // and in bf16. In fp32 otherwise it is 1e-5.
  double by_square, bf16;
};

// The decomposition itself: its factors are orthogonal and its product is the matrix.
TEST(MuonPolar, DecompositionIsExact) {
  const Matrix a = random_matrix(60, 24);
  const Svd d = svd(a);
  Matrix scaled = d.u;
  for (int64_t r = 0; r < scaled.R; ++r)
    for (int64_t c = 0; c < scaled.C; ++c) scaled.at(r, c) *= d.sigma[size_t(c)];
  EXPECT_LT(distance(scaled.times(d.v.transposed()), a), 1e-12);
  const Matrix q = polar_factor(a), one = q.transposed().times(q);
  for (int64_t r = 0; r < one.R; ++r)
    for (int64_t c = 0; c < one.C; ++c) EXPECT_NEAR(one.at(r, c), r == c, 1e-12);
}

// Random matrices end with singular values of 0.86 to 1.14, but for square ones and those with
// singular values of 1/1000, whose smallest stay smaller.
TEST(MuonPolar, UpdateIsNearThePolarFactor) {
  constexpr Case all[] = {
      {8, 8, 0, 0.0706, 1e-5, 0.05},         {64, 64, 0, 0.1037, 1e-5, 0.02},
      {128, 128, 0, 0.0969, 1e-5, 0.02},     {64, 96, 0, 0.0919, 4e-5, 0.02},
      {48, 200, 0, 0.0872, 4e-5, 0.02},      {200, 48, 0, 0.0883, 4e-5, 0.02},
      {256, 96, 0, 0.0893, 4e-5, 0.02},      {96, 256, 0, 0.0919, 4e-5, 0.02},
      {64, 64, 1e-2, 0.0943, 1e-5, 0.025},   {64, 256, 1e-2, 0.0943, 1.5e-4, 0.04},
      {256, 64, 1e-2, 0.0943, 1.5e-4, 0.04}, {64, 64, 1e-3, 0.1706, 1e-5, 0.08},
      {64, 256, 1e-3, 0.1706, 1.2e-3, 0.16}, {256, 64, 1e-3, 0.1706, 1.2e-3, 0.16}};
  struct Path {
    const char* name;
    DType dtype;
    bool exact;
    double limit;
  };
  const std::vector<std::unique_ptr<Backend>> backends = cases::fast_backends(2);
  for (const Case& c : all) {
    const Matrix g = c.least > 0 ? with_spectrum(c.R, c.C, c.least) : random_matrix(c.R, c.C);
    const Matrix polar = polar_factor(g), published = polar_express(g);
    EXPECT_NEAR(distance(published, polar), c.polar, 1e-4) << c.R << " x " << c.C;
    for (const auto& backend : backends)
      for (const Path& p : {Path{"fp32", DType::f32, false, 1e-5},
                            Path{"fp32 by square", DType::f32, true, c.by_square},
                            Path{"bf16", DType::bf16, false, c.bf16}}) {
        const Matrix got = moved(*backend, p.dtype, p.exact, g);
        const double error = distance(got, polar), rounding = distance(got, published);
        const std::string text = fmt::format(
            "{} x {}, least {}, {}, {}: {:.4f} from the polar factor, {:.2g} by rounding", c.R, c.C,
            c.least, p.name, backend->describe(), error, rounding);
        if (backend == backends[0]) fmt::print("{}\n", text);
        EXPECT_LT(error, c.polar + 1e-4 + p.limit / 2) << text;
        EXPECT_LT(rounding, p.limit) << text;
      }
  }
}

}  // namespace
}  // namespace hearth
