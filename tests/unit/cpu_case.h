// Shared by the tests of the fast CPU kernels: a kernel call runs on the reference in double and on
// every usable instruction set with one, two and three threads, into poisoned memory.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "cpu/backend.h"
#include "unit/reference_array.h"

namespace hearth::cpu_test {

using reference::Array;
using reference::none;

inline const DType dtypes[] = {DType::f32, DType::bf16};

inline Stream& stream_of(int threads, Isa isa) {
  static std::map<std::pair<int, Isa>, std::unique_ptr<Backend>> backends;
  std::unique_ptr<Backend>& b = backends[{threads, isa}];
  if (!b) b = make_cpu_backend(threads, isa);
  return b->stream();
}

// What runs a case: the table, its stream, and the dtypes of its outputs.
struct Runner {
  const Kernels& k;
  Stream& s;
  DType dtype, acc;

  // Memory filled with NaNs, so that an element that is not written shows.
  Array out(Shape shape, DType d) const {
    Array a(shape, d);
    std::memset(Tensor(a).data, 0xff, size_t(Tensor(a).bytes()));
    return a;
  }
  Array out(Shape shape) const { return out(shape, dtype); }
  Array sums(Shape shape) const { return out(shape, acc); }
  // A copy of an input, to be overwritten.
  Array in_place(const Array& x) const { return x.as(dtype); }
  Array in_place_acc(const Array& x) const { return x.as(acc); }
};

using Outputs = std::vector<Array>;

template <class... A>
Outputs outputs(A&&... a) {
  Outputs r;
  (r.push_back(std::move(a)), ...);
  return r;
}

inline Runner reference_runner() {
  return {reference_kernels(), Array::stream(), DType::f64, DType::f64};
}
inline Runner runner_of(Isa isa, int threads, DType d) {
  return {cpu_kernels(isa), stream_of(threads, isa), d, DType::f32};
}

// Random values that are exact in dtype d, so that the reference sees the same inputs.
inline Array random(Shape s, DType d, double scale = 1) { return Array::random(s, scale).as(d); }

inline double tolerance(DType d) { return d == DType::bf16 ? 8e-3 : 2e-5; }

inline void expect_close(Tensor got, const Array& want, double tol) {
  ASSERT_EQ(got.shape, Tensor(want).shape);
  Array g(got.shape);
  reference_kernels().copy(Array::stream(), {.y = g, .x = got});
  double top = 0;
  for (double x : want) top = std::max(top, std::abs(x));
  for (int64_t i = 0; i < got.numel(); ++i) {
    const double error = std::abs(g[i] - want[i]);
    if (!(error <= tol * (std::abs(want[i]) + top))) {
      ADD_FAILURE() << "element " << i << " of " << to_string(got.shape) << ": expected " << want[i]
                    << ", got " << g[i] << " (largest " << top << ")";
      return;
    }
  }
}

inline bool same_bytes(Tensor a, Tensor b) {
  if (!a || !b) return !a && !b;
  return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, size_t(a.bytes())) == 0;
}

// body(Runner) returns the outputs of one call.
template <class Body>
void check(const std::string& what, DType d, Body body, double tol = 0) {
  if (tol == 0) tol = tolerance(d);
  const Outputs want = body(reference_runner());
  for (Isa isa : usable_isas()) {
    SCOPED_TRACE(what + " " + std::string(to_string(d)) + " " + std::string(name(isa)));
    const Outputs first = body(runner_of(isa, 1, d));
    ASSERT_EQ(first.size(), want.size());
    int compared = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      SCOPED_TRACE("output " + std::to_string(i));
      ASSERT_EQ(bool(Tensor(first[i])), bool(Tensor(want[i])));
      if (!Tensor(first[i])) continue;  // an output that this call leaves absent
      expect_close(first[i], want[i], tol);
      ++compared;
    }
    ASSERT_GT(compared, 0);
    for (int threads : {2, 3}) {
      const Outputs again = body(runner_of(isa, threads, d));
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(same_bytes(first[i], again[i])) << "output " << i << ", threads " << threads;
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace hearth::cpu_test
