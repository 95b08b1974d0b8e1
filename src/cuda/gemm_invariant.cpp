#include "cuda/gemm_invariant.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "cuda/bits.h"

namespace hearth::cuda {
namespace {

constexpr int64_t measure_rows = 1024;  // whose bits all have
constexpr int64_t most_stretches = 4;   // of so many rows that are compared
constexpr float small = 0x1p-20f;       // what is added to products that cancel

// Memory of a tensor that goes with it.
class OwnTensor {
 public:
  OwnTensor(CudaStream& s, Shape shape, DType dtype)
      : stream_(s), tensor_{nullptr, shape, dtype}, bytes_(tensor_.bytes()) {
    tensor_.data = static_cast<std::byte*>(s.memory.allocate(bytes_, "tuning of matrix products"));
  }
  ~OwnTensor() {
    cudaStreamSynchronize(stream_.handle);
    stream_.memory.release(tensor_.data, bytes_);
  }
  OwnTensor(const OwnTensor&) = delete;
  operator const Tensor&() const { return tensor_; }

 private:
  CudaStream& stream_;
  Tensor tensor_;
  int64_t bytes_;
};

Tensor rows_of(const Tensor& t, int64_t first, int64_t n) {
  const int64_t row = t.cols() * size_of(t.dtype);
  return {t.data + first * row, {n, t.cols()}, t.dtype};
}

// Operands like a call's, of at least a stretch of rows.
class Operands {
 public:
  Operands(CudaStream& s, const GemmCall& c)
      : call_(c),
        rows_(std::max(c.M(), measure_rows)),
        a_(s, {rows_, c.K()}, c.a.dtype),
        b_(s, {c.N(), c.K()}, c.b.dtype),
        bias_(s, {1, c.N()}, c.bias ? c.bias.dtype : c.b.dtype),
        prior_(s, {c.prior ? rows_ : 1, c.N()}, c.c.dtype),
        c_(s, {writes_own(c) ? 1 : c.M(), c.N()}, c.c.dtype),
        measure_(s, {measure_rows, c.N()}, c.c.dtype) {
    fill_cancelling(s, a_, 1, 1);
    fill_cancelling(s, b_, 2, -1);
    fill_random(s, bias_, 3, small);
    fill_random(s, prior_, 4, small);
  }
  // Into the call's own c, which the real run then writes, unless that is still to be added to.
  GemmCall all() const { return call_over(0, call_.M(), out()); }
  // Where stretches of rows begin that are worth a look: the first few, and the last.
  std::vector<int64_t> stretches() const {
    std::vector<int64_t> r;
    for (int64_t at = 0; at < most_stretches * measure_rows; at += measure_rows)
      r.push_back(std::min(at, rows_ - measure_rows));
    r.push_back(rows_ - measure_rows);
    r.erase(std::unique(r.begin(), r.end()), r.end());
    return r;
  }
  GemmCall stretch(int64_t at) const { return call_over(at, measure_rows, measure_); }
  const Tensor& measure() const { return measure_; }
  // What the last run of all() made of a stretch.
  Tensor made(int64_t at) const { return rows_of(out(), at, std::min(measure_rows, call_.M())); }

 private:
  static bool writes_own(const GemmCall& c) {
    return c.c.cols() == c.N() && c.c.data != c.prior.data;
  }
  const Tensor& out() const { return writes_own(call_) ? call_.c : static_cast<const Tensor&>(c_); }
  GemmCall call_over(int64_t first, int64_t n, const Tensor& to) const {
    GemmCall r{to, {}, rows_of(a_, first, n), b_, {}, {}, call_.spec};
    if (call_.bias) r.bias = bias_;
    if (call_.prior) r.prior = rows_of(prior_, first, n);
    return r;
  }

  const GemmCall& call_;
  int64_t rows_;
  OwnTensor a_, b_, bias_, prior_, c_, measure_;
};

// Whether the last run of all() gave what the measure gives.
bool keeps_bits(GemmProducts& products, GemmPlan& measure, const Operands& on) {
  Differences found(products.stream);
  for (const int64_t at : on.stretches()) {
    expect_lt(products.execute(measure, on.stretch(at)), "a matrix product");
    found.add(on.measure(), on.made(at));
  }
  return !found.any();
}

}  // namespace

GemmChoice choice_of(const GemmPlan& p, float milliseconds) {
  GemmChoice r{.fused = p.fused, .microseconds = 1e3f * milliseconds};
  static_assert(sizeof r.algo == sizeof p.product.algo);
  std::memcpy(r.algo.data(), &p.product.algo, sizeof r.algo);
  return r;
}

GemmChoice tune_invariant(GemmProducts& products, const GemmCall& c) {
  const Operands operands(products.stream, c);
  // What follows a product is always the same kernel's, whether or not its argument is kept.
  GemmPlan measure = products.describe(operands.stretch(0), c.plain());
  GemmPlan p = products.describe(operands.all(), c.plain());
  std::vector<cublasLtMatmulAlgo_t> tried = products.proposed(measure.product, true);
  GemmChoice best{.microseconds = 1e3f * GemmProducts::never};
  if (tried.empty()) return best;
  measure.product.algo = tried[0];
  for (const cublasLtMatmulAlgo_t& algo : products.proposed(p.product, true)) tried.push_back(algo);
  for (const cublasLtMatmulAlgo_t& algo : tried) {
    p.product.algo = algo;
    if (!products.usable(p)) continue;
    const GemmChoice now = choice_of(p, products.time(p, operands.all()));
    if (now.microseconds < best.microseconds && keeps_bits(products, measure, operands)) best = now;
  }
  return best;
}

}  // namespace hearth::cuda
