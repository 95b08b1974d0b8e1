#include "cuda/gemm/gemm_invariant.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cuda/device/same_bits.h"
#include "cuda/gemm/gemm_hopper.h"

namespace hearth::cuda {
namespace {

constexpr int64_t measure_rows = 1024;  // rows of the reference product
constexpr float small = 0x1p-20f;       // scale of bias and prior in the comparison
// Up to this K the sums of cancelling values can be exact in any order, so that they tell no two
// algorithms apart: random values are compared too.
constexpr int64_t exact_sums = 64;
// Times the fastest algorithm so far: slower ones are not compared.
constexpr float near = 1.05;

// What two algorithms are compared on.
enum class Values : uint8_t {
  cancelling,     // the order of the sum over k shows
  random,         // or it shows in a few results
  addends_first,  // the order in which the sum, bias and prior are added shows: see Addends
  addends_second,
};

// A tensor that owns its memory.
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

// The product of a call, without the epilogue that our own kernel applies.
GemmCall bare(GemmCall c) {
  if (c.plain()) return c;
  c.spec.act = Act::none, c.spec.alpha = 1;
  c.aux = c.prior = {};
  return c;
}

// The reference: `measure_rows` rows of a bare call, multiplied by the first proposal for them.
struct Measure {
  Measure(const GemmProducts& products, GemmCall c) {
    c.c.shape = {measure_rows, c.N()}, c.a.shape = {measure_rows, c.K()};
    plan = products.describe(c, true);
    proposals = products.proposed(plan.product, true);
    if (!proposals.empty()) plan.product.algo = proposals[0];
  }
  GemmPlan plan;
  std::vector<cublasLtMatmulAlgo_t> proposals;
};

// Operands of a bare call, extended to at least `measure_rows` rows. At first their values cancel.
class Operands {
 public:
  // `writes`: results may go to the call's own c, which the real run then overwrites.
  Operands(CudaStream& s, const GemmCall& c, bool writes)
      : stream_(s),
        call_(c),
        writes_(writes && c.c.cols() == c.N()),
        rows_(std::max(c.M(), measure_rows)),
        a_(s, {rows_, c.K()}, c.a.dtype),
        b_(s, {c.N(), c.K()}, c.b.dtype),
        bias_(s, {1, c.N()}, c.bias ? c.bias.dtype : c.b.dtype),
        prior_(s, {c.prior ? rows_ : 1, c.N()}, c.c.dtype),
        c_(s, {writes_ ? 1 : c.M(), c.N()}, c.c.dtype),
        measure_(s, {measure_rows, c.N()}, c.c.dtype) {
    fill(Values::cancelling);
  }
  void fill(Values v) {
    if (v == Values::addends_first || v == Values::addends_second)
      return fill_addends(stream_, v == Values::addends_first ? Addends::first : Addends::second,
                          {.a = a_, .b = b_, .bias = bias_, .prior = prior_});
    const bool cancelling = v == Values::cancelling;
    cancelling ? fill_cancelling(stream_, a_, 1, 1) : fill_random(stream_, a_, 1, 1);
    cancelling ? fill_cancelling(stream_, b_, 2, -1) : fill_random(stream_, b_, 2, 1);
    fill_random(stream_, bias_, 3, cancelling ? small : 1);
    fill_random(stream_, prior_, 4, cancelling ? small : 1);
  }
  GemmCall all() const { return call_over(0, call_.M(), out()); }
  // Calls f with the first row of each stretch; the last may overlap the one before it.
  template <class F>
  void each_stretch(F f) const {
    for (int64_t at = 0; at < rows_; at += measure_rows) f(std::min(at, rows_ - measure_rows));
  }
  GemmCall stretch(int64_t at) const { return call_over(at, measure_rows, measure_); }
  const Tensor& measure() const { return measure_; }
  // The rows of a stretch from the last run of all().
  Tensor made(int64_t at) const { return rows_of(out(), at, std::min(measure_rows, call_.M())); }

 private:
  const Tensor& out() const { return writes_ ? call_.c : static_cast<const Tensor&>(c_); }
  GemmCall call_over(int64_t first, int64_t n, const Tensor& to) const {
    GemmCall r{{.c = to, .a = rows_of(a_, first, n), .b = b_, .spec = call_.spec}};
    if (call_.bias) r.bias = bias_;
    if (call_.prior) r.prior = rows_of(prior_, first, n);
    return r;
  }

  CudaStream& stream_;
  const GemmCall& call_;
  bool writes_;
  int64_t rows_;
  OwnTensor a_, b_, bias_, prior_, c_, measure_;
};

// Whether the last run of all() has the bits of the reference.
bool ran_alike(GemmProducts& products, GemmPlan& measure, const Operands& on) {
  Differences found(products.stream);
  on.each_stretch([&](int64_t at) {
    expect_lt(products.execute(measure, on.stretch(at)), "a matrix product");
    found.add(on.measure(), on.made(at));
  });
  return !found.any();
}

// Whether a plan has the bits of the reference on all kinds of values that the call needs. The
// operands must have cancelling values and the plan must have run with them; they have them again
// afterwards.
bool keeps_bits(GemmProducts& products, GemmPlan& plan, GemmPlan& measure, const GemmCall& c,
                Operands& on) {
  if (!ran_alike(products, measure, on)) return false;
  std::vector<Values> others;
  if (c.K() <= exact_sums) others.push_back(Values::random);
  // Rounded to 16 bits, about one in 2^17 of the results above shows another order.
  if (c.bias && c.prior)
    others.insert(others.end(), {Values::addends_first, Values::addends_second});
  const bool same = std::ranges::all_of(others, [&](Values v) {
    on.fill(v);
    expect_lt(products.execute(plan, on.all()), "a matrix product");
    return ran_alike(products, measure, on);
  });
  if (!others.empty()) on.fill(Values::cancelling);
  return same;
}

}  // namespace

std::string measure_name(const GemmProducts& products, const GemmCall& c) {
  const Measure m(products, bare(c));
  uint64_t hash = 0;
  for (const uint64_t word : choice_of(m.plan, 0).algo) hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return fmt::format("={:016x}+", hash);  // +: the order of bias and prior has been compared
}

namespace {

// The fastest variant of our own kernel, if it has the bits of the reference and is faster than
// cuBLASLt's product and what follows it.
std::optional<GemmChoice> faster_own(GemmProducts& products, const GemmCall& call,
                                     Operands& operands, GemmPlan& measure,
                                     const GemmChoice& best) {
  const int variants = gemm_hopper_takes(products.stream, call);
  if (variants == 0 || call.K() <= exact_sums) return {};
  GemmPlan own{.own = 0};  // all variants have the same bits
  expect_lt(products.execute(own, operands.all()), "a matrix product");
  if (!keeps_bits(products, own, measure, bare(call), operands)) return {};
  // With an activation the call's own results are written; the real run overwrites them.
  const GemmCall trial = call.plain() ? operands.all() : call;
  std::optional<GemmChoice> found;
  float least = best.microseconds;
  if (!best.own()) {
    GemmPlan other = products.plan_of(call, best);
    least = 1e3f * products.time(other, trial);
  }
  for (int variant = 0; variant < variants; ++variant) {
    own.own = variant;
    const GemmChoice now = choice_of(own, products.time(own, trial, least / 1e3f));
    if (now.microseconds < least) least = now.microseconds, found = now;
  }
  return found;
}

}  // namespace

GemmChoice tune_invariant(GemmProducts& products, const GemmCall& call) {
  const GemmCall c = bare(call);
  const bool writes = call.c.data != call.prior.data;
  Operands operands(products.stream, c, writes);
  Measure measure(products, c);
  GemmPlan p = products.describe(operands.all(), true);
  std::vector<GemmChoice> found;
  float least = GemmProducts::never;
  if (measure.proposals.empty()) return {.microseconds = 1e3f * GemmProducts::never};
  std::vector<cublasLtMatmulAlgo_t> tried = products.proposed(p.product, true);
  tried.insert(tried.end(), measure.proposals.begin(), measure.proposals.end());
  for (const cublasLtMatmulAlgo_t& algo : tried) {
    p.product.algo = algo;
    if (!products.usable(p)) continue;
    const float ms = products.time(p, operands.all(), least);
    if (ms == GemmProducts::never || ms > near * least) continue;
    if (!keeps_bits(products, p, measure.plan, c, operands)) continue;
    found.push_back(choice_of(p, ms));
    least = std::min(least, ms);
  }
  GemmChoice best = products.best_of(std::move(found), operands.all());
  // cuBLASLt leaves the epilogue to our own kernel, whether or not training keeps its argument.
  best.fused = call.plain();
  return faster_own(products, call, operands, measure.plan, best).value_or(best);
}

}  // namespace hearth::cuda
