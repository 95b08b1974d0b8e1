#include "cuda/gemm/gemm.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "cuda/gemm/gemm_batch.h"
#include "cuda/gemm/gemm_choices.h"
#include "cuda/gemm/gemm_invariant.h"
#include "cuda/gemm/gemm_narrow.h"
#include "cuda/gemm/gemm_rows16.h"
#include "cuda/gemm/gemm_rows64.h"
#include "cuda/kernels.h"
#include "sys/error.h"

namespace hearth::cuda {

struct Gemms::State {
  State(CudaStream& s, const GemmsSpec& spec)
      : products(s, spec.tf32),
        choices(GemmChoices::of(choices_file(spec.card, cublas_lt().GetVersion()))) {}

  // Times the proposals on the product's own outputs, which the real run then overwrites. If the
  // product adds in place, c still holds the prior, so a temporary c is used.
  GemmChoice tune(const GemmCall& c) {
    CudaStream& stream = products.stream;
    GemmCall trial = c;
    const int64_t bytes = c.in_place() ? c.c.bytes() : 0;
    void* place = bytes ? stream.memory.allocate(bytes, "tuning of matrix products") : nullptr;
    if (place) trial.c.data = static_cast<std::byte*>(place);
    GemmChoice choice{.microseconds = 1e3f * GemmProducts::never};
    const auto try_plan = [&](GemmPlan& p) {
      const float ms = products.time(p, trial, choice.microseconds / 1e3f);
      if (1e3f * ms < choice.microseconds) choice = choice_of(p, ms);
    };
    for (const bool fused : {true, false}) {
      const bool found = choice.microseconds < 1e3f * GemmProducts::never;
      if (fused ? !c.fusible() : c.plain() && (found || !c.separable())) continue;
      GemmPlan p = products.describe(c, fused);
      for (const cublasLtMatmulAlgo_t& algo : products.proposed(p.product)) {
        p.product.algo = algo;
        try_plan(p);
      }
    }
    if (GemmPlan own{.own = true}; gemm_batch_takes(stream, c)) try_plan(own);
    check(cudaStreamSynchronize(stream.handle), "tuning of matrix products");
    if (place) stream.memory.release(place, bytes);
    return choice;
  }

  GemmPlan chosen(const GemmCall& c, const GemmChoice& choice) const {
    if (choice.own()) return {.own = true};
    GemmPlan p = products.describe(c, choice.fused);
    std::memcpy(&p.product.algo, choice.algo.data(), sizeof p.product.algo);
    return p;
  }

  // A product that adds to its result in place runs like the one that overwrites it, so the second
  // micro-batch of a step takes over the choice made for the first. The choice is then kept for
  // both: later runs must not depend on which of them is known.
  std::optional<GemmChoice> choice_without_prior(const GemmCall& c) {
    if (!c.in_place() || !c.plain()) return {};
    GemmCall other = c;
    other.prior = {};
    return choices.find(other.key(products.tf32));
  }

  GemmPlan& plan_for(const GemmCall& c) {
    const bool invariant = products.stream.invariant && c.forward();
    if (invariant && c.rounds_twice())  // ops/linear.cpp never records such a product
      fail("cuda gemm", "expected a batch-invariant product of 16 bits to add out of place");
    const bool own = gemm_batch_takes(products.stream, c);
    std::string key = c.key(products.tf32) + (own ? "|own" : "");
    if (const auto it = plans.find(key); it != plans.end()) return it->second;
    if (own && products.stream.own_batches)
      return plans.emplace(std::move(key), GemmPlan{.own = true}).first->second;
    const std::string kept = invariant ? key + measure_name(products, c) : key;
    const auto fits = [&](const GemmChoice& known) {
      if (known.own()) return own;
      return (known.fused ? c.fusible() && (!invariant || c.plain())
                          : !c.plain() || c.separable()) &&
             products.usable(chosen(c, known));
    };
    std::optional<GemmChoice> choice = choices.find(kept);
    if (!choice || !fits(*choice)) {
      std::optional<GemmChoice> own;
      if (!invariant) own = choice_without_prior(c);
      if (!own || !fits(*own)) own = invariant ? tune_invariant(products, c) : tune(c);
      if (own->microseconds >= 1e3f * GemmProducts::never)
        fail("cuda gemm", "expected an algorithm for {}, got none from cuBLASLt", kept);
      const GemmChoice agreed = choices.put(kept, *own);
      choice = fits(agreed) ? agreed : *own;
    }
    return plans.emplace(std::move(key), chosen(c, *choice)).first->second;
  }

  GemmProducts products;
  GemmChoices& choices;
  std::unordered_map<std::string, GemmPlan> plans;
};

Gemms::Gemms(CudaStream& s, const GemmsSpec& spec) : state_(std::make_unique<State>(s, spec)) {}
Gemms::~Gemms() = default;

void Gemms::run(const GemmArgs& args) {
  const GemmCall call{args};
  expect_lt(state_->products.execute(state_->plan_for(call), call), "a matrix product");
}

namespace {

void expect_fp8(const GemmArgs& args) {
  if (!is_fp8(args.b.dtype) || !args.a_scale || !args.b_scale || args.spec.ta || !args.spec.tb)
    fail("cuda gemm",
         "expected two fp8 matrices with scales, the second one transposed, got {} x {}",
         to_string(args.a.dtype), to_string(args.b.dtype));
  if (args.b.rows() % 16 || args.b.cols() % 16)
    fail("cuda gemm",
         "expected an fp8 product with N and K that are multiples of 16, got {} and {}",
         args.b.rows(), args.b.cols());
}

}  // namespace

void gemm(Stream& s, const GemmArgs& args) {
  if (is_fp8(args.a.dtype)) {
    expect_fp8(args);
    return on(s).gemms->run(args);
  }
  if (on(s).invariant && gemm_narrow_takes(args)) return gemm_narrow(on(s), args);
  if (on(s).invariant || !args.spec.single()) return on(s).gemms->run(args);
  if (gemm_rows16_takes(args)) return gemm_rows16(on(s), args);
  if (gemm_rows64_takes(on(s), args)) return gemm_rows64(on(s), args);
  on(s).gemms->run(args);
}

bool norm_gemm_takes(Stream& s, int64_t rows, int64_t width, int64_t columns, DType dtype) {
  if (on(s).invariant) return false;
  return rows <= 16 ? norm_gemm_rows16_takes(rows, width, columns, dtype)
                    : norm_gemm_rows64_takes(on(s), rows, width, columns, dtype);
}

namespace {

// Packed weights, for up to 64 rows. gemm_rows16 normalises rows of bf16; others are normalised
// before it.
void norm_gemm_packed(CudaStream& s, const NormGemmArgs& args) {
  const FewNormed normed{args.gain, args.shift, args.norm};
  GemmQuantisedArgs product{.c = args.c,
                            .a = args.x,
                            .w = args.b,
                            .bias = args.bias,
                            .prior = args.prior,
                            .spec = args.gemm};
  if (args.x.dtype == DType::bf16) return gemm_rows16_quantised(s, product, &normed);
  product.a.data = static_cast<std::byte*>(s.scratch(args.x.bytes()));
  norm(s, {.y = product.a, .x = args.x, .gain = args.gain, .bias = args.shift, .spec = args.norm});
  gemm_rows16_quantised(s, product);
}

}  // namespace

void norm_gemm(Stream& s, const NormGemmArgs& args) {
  const bool packed = is_panels(args.b.dtype);
  for (const Tensor& t : {args.gain, args.shift, packed ? Tensor{} : args.b, args.bias})
    if (t && t.dtype != args.x.dtype) refuse_dtypes("norm_gemm", t.dtype, args.x.dtype);
  if (packed) {
    norm_gemm_packed(on(s), args);
  } else if (args.x.rows() <= 16) {
    norm_gemm_rows16(on(s), args);
  } else {
    norm_gemm_rows64(on(s), args);
  }
}

}  // namespace hearth::cuda
