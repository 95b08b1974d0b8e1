// Shared by the tests of the reference kernels: tensors that own their memory, and gradient checks
// by central differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "cpu/reference/reference.h"

namespace hearth::reference {

inline const Kernels& ops = reference_kernels();

// A tensor that owns its memory; f64 by default.
class Array {
 public:
  Array() = default;  // absent
  explicit Array(Shape s, DType d = DType::f64) : memory_(size_t(s.numel() * size_of(d))) {
    t_ = {memory_.data(), s, d};
  }
  Array(Shape s, std::vector<double> x) : Array(s) { std::copy(x.begin(), x.end(), begin()); }
  static Array ints(Shape s, std::vector<int32_t> x) {
    Array a(s, DType::i32);
    std::copy(x.begin(), x.end(), a.t_.as<int32_t>());
    return a;
  }
  template <class T>
  static Array of(const T& x) {  // the bytes of a struct
    Array a(Shape{int64_t(sizeof x) / 4}, DType::f32);
    std::memcpy(a.t_.data, &x, sizeof x);
    return a;
  }
  static Array random(Shape s, double scale = 1) {
    static std::mt19937 bits(1);
    Array a(s);
    for (double& x : a) x = scale * (double(bits()) / 2147483648.0 - 1);
    return a;
  }
  Array(Array&&) = default;  // moving keeps the memory's address
  Array& operator=(Array&&) = default;

  operator Tensor() const { return t_; }
  double* begin() const { return t_.as<double>(); }
  double* end() const { return begin() + t_.numel(); }
  double& operator[](int64_t i) const { return begin()[i]; }
  template <class T>
  T to() const {
    T x;
    std::memcpy(&x, t_.data, sizeof x);
    return x;
  }
  Array as(DType d) const {
    Array a(t_.shape, d);
    ops.copy(stream(), {.y = a, .x = *this});
    return a;
  }
  Array copy() const { return as(DType::f64); }
  static Stream& stream() {
    static const auto backend = make_reference_backend();
    return backend->stream();
  }

 private:
  std::vector<std::byte> memory_;
  Tensor t_;
};

inline const Tensor none;
inline Stream& stream = Array::stream();

inline double inner(const Array& a, const Array& b) {
  double s = 0;
  for (int64_t i = 0; i < Tensor(a).numel(); ++i) s += a[i] * b[i];
  return s;
}

// Checks that dx is d loss / dx, within 1e-6 of its largest element.
inline void expect_gradient(const char* what, const Array& x, const Array& dx,
                            const std::function<double()>& loss) {
  const double h = 1e-5;
  double top = 0, worst = 0;
  for (int64_t i = 0; i < Tensor(x).numel(); ++i) {
    const double was = x[i];
    x[i] = was + h;
    const double above = loss();
    x[i] = was - h;
    const double below = loss();
    x[i] = was;
    const double slope = (above - below) / (2 * h);
    top = std::max(top, std::abs(slope));
    worst = std::max(worst, std::isnan(dx[i]) ? INFINITY : std::abs(slope - dx[i]));
  }
  EXPECT_GT(top, 1e-4) << what << ": the loss does not depend on it, the test is void";
  EXPECT_LT(worst / top, 1e-6) << what;
}

inline void expect_near(const Array& x, std::vector<double> want, double tolerance = 1e-12) {
  ASSERT_EQ(Tensor(x).numel(), int64_t(want.size()));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(x[int64_t(i)], want[i], tolerance) << i;
}

inline void expect_same_bytes(Tensor a, Tensor b) {
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(std::memcmp(a.data, b.data, size_t(a.bytes())), 0);
}
}  // namespace hearth::reference
