// Shared by the tests of kernels that write their result in fp8 themselves: calls of each on
// tensors of the host, with the fp8 output and with a separate rounding after it.
#pragma once

#include "fp8_case.h"

namespace hearth::cases {

// Buffers for an Fp8Output of R rows and C columns, filled with rubbish.
class Fp8Buffers {
 public:
  struct Spec {
    int64_t R = 1, C = 16;
    DType format = DType::e4m3;
    bool delayed = false;  // the scale comes from `previous`
    float previous = 0;
    bool early = false;  // in one of the first steps of a run, which measure the scale
  };

  Fp8Buffers(Backend& b, const Spec& s)
      : spec_(s),
        y_(b, std::vector<uint8_t>(size_t(s.R * s.C), 0x55), {s.R, s.C}, s.format),
        yt_(b, std::vector<uint8_t>(size_t(s.C * round_up(s.R, 16)), 0x55),
            {s.C, round_up(s.R, 16)}, s.format),
        sums_(b, std::vector<float>(size_t(ceil_div(s.R, fp8_sum_rows) * s.C), 1e9f),
              {ceil_div(s.R, fp8_sum_rows), s.C}, DType::f32),
        site_(b, {site_before(s)}, {1, int64_t(sizeof(Fp8Site))}, DType::u8),
        scalars_(b, {scalars_of(s)}, {int64_t(sizeof(Scalars))}, DType::u8) {}

  Fp8Output output() const {
    return {.y = y_,
            .yt = yt_,
            .sums = sums_,
            .site = site_,
            .scalars = spec_.delayed || spec_.early ? Tensor(scalars_) : Tensor{}};
  }
  RoundResult read() const { return {y_.read(), yt_.read(), sums_.read(), site_.read()[0]}; }

 private:
  static Fp8Site site_before(const Spec& s) {
    Fp8Site site;
    site.previous = s.previous;
    return site;
  }
  static Scalars scalars_of(const Spec& s) {
    Scalars scalars;
    scalars.step = s.early ? 0 : fp8_measured_steps;
    return scalars;
  }

  Spec spec_;
  OnDevice<uint8_t> y_, yt_;
  OnDevice<float> sums_;
  OnDevice<Fp8Site> site_;
  OnDevice<Scalars> scalars_;
};

// --- norms ---

struct NormCase {
  Fp8Buffers::Spec out;
  NormSpec norm = {};
  bool gain = true, bias = false, residual = false;  // residual: the prior of the gradient
  bool in_place = false;  // the sum overwrites the residual, the gradient its prior
};

struct NormResult {
  std::vector<bf16> y, sum;  // y: dx in the backward pass
  std::vector<float> stat;
  std::vector<float> dgain, dbias;
  RoundResult fp8;
};

enum class Rounded : uint8_t { by_kernel, by_kernel_alone, separately };  // alone: without bf16

inline NormResult norm_on(Backend& b, const NormCase& c, Rounded how) {
  const int64_t R = c.out.R, C = c.out.C;
  const OnDevice<bf16> y(b, random_bf16(R * C, 9), {R, C}, DType::bf16);
  const OnDevice<bf16> sum(b, random_bf16(R * C, 9), {R, C}, DType::bf16);
  const OnDevice<float> stat(b, std::vector<float>(size_t(2 * R)), {R, 2}, DType::f32);
  const OnDevice<bf16> x(b, random_bf16(R * C, 1, 3), {R, C}, DType::bf16);
  const OnDevice<bf16> residual(b, random_bf16(R * C, 2), {R, C}, DType::bf16);
  const OnDevice<bf16> gain(b, random_bf16(C, 3), {C}, DType::bf16);
  const OnDevice<bf16> bias(b, random_bf16(C, 4), {C}, DType::bf16);
  const Fp8Buffers to(b, c.out);
  Fp8Output own = to.output();
  own.sums = {};
  b.kernels().norm(b.stream(), {.y = how == Rounded::by_kernel_alone ? Tensor{} : Tensor(y),
                                .sum = !c.residual  ? Tensor{}
                                       : c.in_place ? Tensor(residual)
                                                    : Tensor(sum),
                                .stat = stat,
                                .x = x,
                                .residual = c.residual ? Tensor(residual) : Tensor{},
                                .gain = c.gain ? Tensor(gain) : Tensor{},
                                .bias = c.bias ? Tensor(bias) : Tensor{},
                                .fp8 = how == Rounded::separately ? Fp8Output{} : own,
                                .spec = c.norm});
  if (how == Rounded::separately) b.kernels().quantise_fp8(b.stream(), {.to = own, .x = y});
  b.synchronize();
  return {y.read(), c.in_place ? residual.read() : sum.read(), stat.read(), {}, {}, to.read()};
}

inline NormResult norm_bwd_on(Backend& b, const NormCase& c, Rounded how) {
  const int64_t R = c.out.R, C = c.out.C;
  const OnDevice<bf16> separate(b, random_bf16(R * C, 9), {R, C}, DType::bf16);
  const OnDevice<float> dgain(b, std::vector<float>(size_t(C)), {C}, DType::f32);
  const OnDevice<float> dbias(b, std::vector<float>(size_t(C)), {C}, DType::f32);
  const OnDevice<float> parts(b, std::vector<float>(size_t(2 * row_parts * C)), {2 * row_parts, C},
                              DType::f32);
  const OnDevice<bf16> dy(b, random_bf16(R * C, 1), {R, C}, DType::bf16);
  const OnDevice<bf16> x(b, random_bf16(R * C, 2, 3), {R, C}, DType::bf16);
  const OnDevice<bf16> gain(b, random_bf16(C, 3), {C}, DType::bf16);
  const OnDevice<bf16> prior(b, random_bf16(R * C, 4), {R, C}, DType::bf16);
  const OnDevice<bf16>& dx = c.in_place ? prior : separate;
  std::vector<float> numbers;
  for (int64_t r = 0; r < R; ++r)
    numbers.insert(numbers.end(), {c.norm.kind == Norm::layer ? 0.25f : 0.0f, 0.4f});
  const OnDevice<float> stat(b, numbers, {R, 2}, DType::f32);
  const Fp8Buffers to(b, c.out);
  b.kernels().norm_bwd(b.stream(), {.dx = how == Rounded::by_kernel_alone ? Tensor{} : Tensor(dx),
                                    .dgain = c.gain ? Tensor(dgain) : Tensor{},
                                    .dbias = c.bias ? Tensor(dbias) : Tensor{},
                                    .parts = parts,
                                    .dy = dy,
                                    .x = x,
                                    .gain = c.gain ? Tensor(gain) : Tensor{},
                                    .stat = stat,
                                    .prior = c.residual ? Tensor(prior) : Tensor{},
                                    .fp8 = how == Rounded::separately ? Fp8Output{} : to.output(),
                                    .spec = c.norm});
  if (how == Rounded::separately)
    b.kernels().quantise_fp8(b.stream(), {.to = to.output(), .x = dx});
  b.synchronize();
  return {dx.read(), {}, {}, dgain.read(), dbias.read(), to.read()};
}

// --- cross-entropy ---

struct LossCase {
  int64_t R = 1, V = 16, wide = 16;  // wide: columns of the logits
  LossSpec spec = {};                // without vocab
  float inv_targets = 1.0f / 3;
  bool transposed = true;
};

struct LossResult {
  std::vector<float> nll, z;
  std::vector<bf16> logits;
  RoundResult fp8;
};

// Every fifth row is masked.
inline std::vector<int32_t> loss_targets(const LossCase& c) {
  std::vector<int32_t> t;
  for (int64_t r = 0; r < c.R; ++r) t.push_back(r % 5 == 3 ? -100 : int32_t((r * 7 + 5) % c.V));
  return t;
}

inline LossResult loss_on(Backend& b, const LossCase& c, const std::vector<bf16>& x, bool fp8) {
  Scalars numbers;
  numbers.inv_targets = c.inv_targets;
  const OnDevice<float> nll(b, std::vector<float>(size_t(c.R), 1e9f), {c.R, 1}, DType::f32);
  const OnDevice<float> z(b, std::vector<float>(size_t(c.R), 1e9f), {c.R, 1}, DType::f32);
  const OnDevice<bf16> logits(b, x, {c.R, c.wide}, DType::bf16);
  const OnDevice<int32_t> targets(b, loss_targets(c), {c.R, 1}, DType::i32);
  const OnDevice<Scalars> scalars(b, {numbers}, {int64_t(sizeof numbers)}, DType::u8);
  const Fp8Buffers to(b, {.R = c.R, .C = c.wide, .format = DType::e5m2});
  Fp8Output out = to.output();
  out.sums = {};
  if (!c.transposed) out.yt = {};
  LossSpec spec = c.spec;
  spec.vocab = c.V;
  b.kernels().cross_entropy(b.stream(), {.nll = nll,
                                         .z = z,
                                         .logits = logits,
                                         .targets = targets,
                                         .scalars = scalars,
                                         .fp8 = fp8 ? out : Fp8Output{},
                                         .spec = spec});
  b.synchronize();
  return {nll.read(), z.read(), logits.read(), to.read()};
}

// The gradient that is rounded, by its formula.
inline Numbers loss_gradient(const LossCase& c, const std::vector<bf16>& x) {
  const std::vector<int32_t> targets = loss_targets(c);
  Numbers g(size_t(c.R * c.wide));
  const double unit = c.spec.weight, cap = c.spec.softcap;
  for (int64_t r = 0; r < c.R; ++r) {
    if (targets[size_t(r)] < 0) continue;
    const auto at = [&](int64_t j) { return double(float(x[size_t(r * c.wide + j)])); };
    const auto level = [&](int64_t j) { return cap > 0 ? cap * std::tanh(at(j) / cap) : at(j); };
    double sum = 0;
    for (int64_t j = 0; j < c.V; ++j) sum += std::exp(level(j));
    for (int64_t j = 0; j < c.V; ++j) {
      const double p = std::exp(level(j)) / sum, hit = j == targets[size_t(r)] ? 1 : 0;
      const double t = cap > 0 ? std::tanh(at(j) / cap) : 0;
      g[size_t(r * c.wide + j)] =
          (p - hit + c.spec.z_loss / unit * 2 * std::log(sum) * p) * (1 - t * t);
    }
  }
  return g;
}

// Off by half a step of e5m2 at most: a ninth of the value, or half of the smallest number.
inline bool is_nearest_gradient(double value, uint8_t code) {
  const double got = double(fp8_value(DType::e5m2, code)) * fp8_logits_scale;
  return std::abs(got - value) <= std::abs(value) * 0.1112 + 0x1.01p-30;
}

}  // namespace hearth::cases
