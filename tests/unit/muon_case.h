// Shared by the tests of Muon: a matrix in double, and the published iteration.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace hearth::muon_test {

// A matrix in double, and what the formulas need of it.
struct Matrix {
  int64_t R = 0, C = 0;
  std::vector<double> x;

  double& at(int64_t r, int64_t c) { return x[size_t(r * C + c)]; }
  double at(int64_t r, int64_t c) const { return x[size_t(r * C + c)]; }
  double norm() const {
    double s = 0;
    for (const double v : x) s += v * v;
    return std::sqrt(s);
  }
  Matrix transposed() const {
    Matrix t{C, R, std::vector<double>(x.size())};
    for (int64_t r = 0; r < R; ++r)
      for (int64_t c = 0; c < C; ++c) t.at(c, r) = at(r, c);
    return t;
  }
  Matrix times(const Matrix& b) const {
    Matrix y{R, b.C, std::vector<double>(size_t(R * b.C))};
    for (int64_t r = 0; r < R; ++r)
      for (int64_t k = 0; k < C; ++k)
        for (int64_t c = 0; c < b.C; ++c) y.at(r, c) += at(r, k) * b.at(k, c);
    return y;
  }
  Matrix plus(double a, const Matrix& b, double scale) const {
    Matrix y = *this;
    for (size_t i = 0; i < x.size(); ++i) y.x[i] = a * x[i] + scale * b.x[i];
    return y;
  }
};

// The published iteration, as written there.
inline Matrix polar_express(Matrix x) {
  static constexpr double abc[5][3] = {
      {8.156554524902461, -22.48329292557795, 15.878769915207462},
      {4.042929935166739, -2.808917465908714, 0.5000178451051316},
      {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
      {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
      {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
  const bool tall = x.R > x.C;
  if (tall) x = x.transposed();
  const double norm = 1.02 * x.norm() + 1e-6;
  for (double& v : x.x) v /= norm;
  for (const auto& [a, b, c] : abc) {
    const Matrix A = x.times(x.transposed());
    x = x.plus(a, A.plus(b, A.times(A), c).times(x), 1);
  }
  return tall ? x.transposed() : x;
}

}  // namespace hearth::muon_test
