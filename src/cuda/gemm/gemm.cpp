#include "cuda/gemm/gemm.h"

#include <algorithm>
#include <unordered_map>

#include "cuda/gemm/gemm_choices.h"
#include "cuda/gemm/gemm_hopper.h"
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

  // Times the proposals on the product's own outputs, which the real run then overwrites. Outputs
  // that still hold what is to be added to are replaced by temporary ones.
  GemmChoice tune(const GemmCall& c) {
    CudaStream& stream = products.stream;
    GemmCall trial = c;
    ColumnSumArgs sums = c.sums ? *c.sums : ColumnSumArgs{};
    if (c.sums) trial.sums = &sums;
    const int64_t c_bytes = c.in_place() ? round_up(c.c.bytes(), 256) : 0;
    const int64_t bytes = c_bytes + (sums.add ? sums.out.bytes() : 0);
    void* place = bytes ? stream.memory.allocate(bytes, "tuning of matrix products") : nullptr;
    if (c_bytes) trial.c.data = sums.x.data = static_cast<std::byte*>(place);
    if (sums.add) sums.out.data = static_cast<std::byte*>(place) + c_bytes;
    std::vector<GemmChoice> found;
    float best = GemmProducts::never;
    const auto try_plan = [&](GemmPlan& p) {
      const float ms = products.time(p, trial, best);
      if (ms < GemmProducts::never) found.push_back(choice_of(p, ms));
      best = std::min(best, ms);
    };
    for (const bool fused : {true, false}) {
      const bool any = best < GemmProducts::never;
      if (fused ? !c.fusible() : c.plain() && (any || !c.separable())) continue;
      GemmPlan p = products.describe(c, fused);
      for (const cublasLtMatmulAlgo_t& algo : products.proposed(p.product)) {
        p.product.algo = algo;
        try_plan(p);
      }
    }
    for (int variant = 0; variant < gemm_hopper_takes(stream, c); ++variant) {
      GemmPlan own{.own = variant};
      try_plan(own);
    }
    const GemmChoice choice = products.best_of(std::move(found), trial);
    check(cudaStreamSynchronize(stream.handle), "tuning of matrix products");
    if (place) stream.memory.release(place, bytes);
    return choice;
  }

  // A product that adds to its result in place runs like the one that overwrites it, so the second
  // micro-batch of a step takes over the choice made for the first. The choice is then kept for
  // both: later runs must not depend on which of them is known.
  std::optional<GemmChoice> choice_without_prior(const GemmCall& c) {
    if (!c.in_place() || !c.plain()) return {};
    GemmCall other = c;
    other.prior = {};
    return choices.find(key_of(other));
  }

  // Choices that were made without our own kernel have other names.
  std::string key_of(const GemmCall& c) const {
    return c.key(products.tf32) + (gemm_hopper_takes(products.stream, c) ? "|own" : "");
  }

  GemmPlan& plan_for(const GemmCall& c) {
    const bool invariant = products.stream.invariant && c.forward();
    if (invariant && c.rounds_twice())  // ops/linear.cpp never records such a product
      fail("cuda gemm", "expected a batch-invariant product of 16 bits to add out of place");
    const int own = gemm_hopper_takes(products.stream, c);
    std::string key = key_of(c);
    if (const auto it = plans.find(key); it != plans.end()) return it->second;
    if (const int variant = products.stream.own_products; variant >= 0 && own > 0 && !invariant)
      return plans.emplace(std::move(key), GemmPlan{.own = std::min(variant, own - 1)})
          .first->second;
    const std::string kept = invariant ? key + measure_name(products, c) : key;
    const auto fits = [&](const GemmChoice& known) {
      if (known.own()) return known.variant() >= 0 && known.variant() < own;
      return (known.fused ? c.fusible() && (!invariant || c.plain())
                          : !c.plain() || c.separable()) &&
             products.usable(products.plan_of(c, known));
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
    return plans.emplace(std::move(key), products.plan_of(c, *choice)).first->second;
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

void Gemms::run(const GemmArgs& args, const ColumnSumArgs& sums) {
  const GemmCall call{args, &sums};
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

void gemm_sums(Stream& s, const GemmArgs& args, const ColumnSumArgs& sums) {
  if (sums.out.dtype != DType::f32) refuse_dtype("gemm_sums", sums.out.dtype);
  if (gemm_hopper_takes(on(s), args) > 0 && gemm_hopper_sums(args))
    return on(s).gemms->run(args, sums);
  gemm(s, args);
  column_sum(s, sums);
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
