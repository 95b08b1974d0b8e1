// The z-loss on the card: its values and gradients against double precision, for vocabularies that
// fit into shared memory and for those that do not, and in a training run.
#include <fmt/format.h>

#include "held.h"
#include "model_cases.h"
#include "train/losses.h"
#include "train/pretrain/programs.h"
#include "unit/reference_array.h"

namespace hearth {
namespace {

using reference::Array;
using test::card;
using test::Held;

cases::Numbers numbers(const std::vector<float>& x) { return {x.begin(), x.end()}; }
cases::Numbers numbers(const Array& x) { return {x.begin(), x.end()}; }

struct Rows {
  cases::Numbers nll, z, logits;
};

constexpr int64_t N = 5;
constexpr Scalars scalars{.inv_targets = 0.25f, .loss_scale = 2};

Rows on_card(const std::vector<float>& x, const std::vector<int32_t>& targets, int64_t wide,
             DType d, const LossSpec& spec, bool with_z) {
  Backend& b = card();
  Held nll(b, {N}, DType::f32), z(b, {N}, DType::f32), logits(b, {N, wide}, d);
  Held at(b, {N}, DType::f32), values(b, {int64_t(sizeof scalars) / 4}, DType::f32);
  logits.fill(x);
  b.upload(at.t.data, targets.data(), 4 * N);
  b.upload(values.t.data, &scalars, sizeof scalars);
  at.t.dtype = DType::i32;
  b.kernels().cross_entropy(b.stream(), {.nll = nll.t,
                                         .z = with_z ? z.t : Tensor{},
                                         .logits = logits.t,
                                         .targets = at.t,
                                         .scalars = values.t,
                                         .spec = spec});
  b.synchronize();
  return {numbers(nll.read()), with_z ? numbers(z.read()) : cases::Numbers{},
          numbers(logits.read())};
}

Rows in_double(const std::vector<float>& x, const std::vector<int32_t>& targets, int64_t wide,
               const LossSpec& spec) {
  const Array nll({N}), z({N}), logits(Shape{N, wide}, std::vector<double>(x.begin(), x.end()));
  reference_kernels().cross_entropy(Array::stream(), {.nll = nll,
                                                      .z = z,
                                                      .logits = logits,
                                                      .targets = Array::ints({N}, targets),
                                                      .scalars = Array::of(scalars),
                                                      .spec = spec});
  return {numbers(nll), numbers(z), numbers(logits)};
}

TEST(CudaLosses, ZLossIsThatInDouble) {
  HEARTH_NEEDS_A_CARD();
  std::mt19937 random(3);
  for (const auto& [dtype, value, gradient] : test::card_tolerances)
    for (const int64_t V : {2, 50, 257, 2500, 50257, 131072})
      for (const float cap : {0.0f, 3.0f})
        for (const float z_loss : {1e-4f, 0.5f})
          for (const bool grad : {false, true}) {
            SCOPED_TRACE(
                fmt::format("{} V {} cap {} z {} grad {}", to_string(dtype), V, cap, z_loss, grad));
            const int64_t wide = V % 8 == 2 ? (V + 127) / 128 * 128 : V;  // padded, or as it is
            std::uniform_real_distribution<float> some(-6, 6);
            std::vector<float> x(size_t(N * wide));
            for (float& v : x) v = float(cases::rounded(double(some(random)), dtype));
            const int32_t last = int32_t(V) - 1;
            const std::vector<int32_t> targets{0, last, -100, last / 2, 1};
            const LossSpec spec{.vocab = V, .softcap = cap, .grad = grad, .z_loss = z_loss};
            const Rows got = on_card(x, targets, wide, dtype, spec, true);
            const Rows want = in_double(x, targets, wide, spec);
            EXPECT_LT(cases::error_of(got.nll, want.nll), 1e-5);
            EXPECT_LT(cases::error_of(got.z, want.z), 1e-5);
            EXPECT_EQ(got.z[2], 0);
            EXPECT_LT(cases::error_of(got.logits, want.logits), grad ? gradient : 1e-30);
          }
}

TEST(CudaLosses, WithoutWeightChangesNoBit) {
  HEARTH_NEEDS_A_CARD();
  std::mt19937 random(4);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::vector<float> x = test::rounded(size_t(N * 1500), dtype, random);
    const std::vector<int32_t> targets{5, 1, -100, 1499, 77};
    const LossSpec spec{.grad = true};
    const Rows plain = on_card(x, targets, 1500, dtype, spec, false);
    const Rows beside = on_card(x, targets, 1500, dtype, spec, true);
    EXPECT_TRUE(plain.nll == beside.nll);
    EXPECT_TRUE(plain.logits == beside.logits);
  }
}

TEST(CudaLosses, TermsOfAStepAreTheCpus) {
  HEARTH_NEEDS_A_CARD();
  ProgramSpec s{.model = cases::model_cases()[0].config, .B = 2, .T = 8, .accumulates = true};
  s.losses.z_loss = 0.1f;
  const Batch batch = cases::make_batch(s.model, s.B, s.T, false);
  const auto cpu = make_cpu_backend(2);
  std::vector<double> found;
  for (Backend* b : {cpu.get(), &card()}) {
    ParamStore params(*b, decoder_params(s.model), s.dtype);
    params.initialise(21);
    Memory memory(*b, &params);
    Programs programs(s, memory);
    const Scalars half{.inv_targets = 0.5f / float(batch.count)};
    for (int step = 0; step < 3; ++step)  // the later ones are replayed graphs
      programs.micro(batch, half, true), programs.micro(batch, half, false);
    LossQueue terms(*b);
    programs.send_terms(terms);
    found.push_back(terms.take().at(0).value);
    programs.evaluate(batch);
    found.push_back(programs.evaluated_terms().at(0).value);
  }
  for (const double x : found) EXPECT_NEAR(x, found[0], 1e-4 * found[0]);
}

}  // namespace
}  // namespace hearth
