// Loss terms: the z-loss in every loss kernel against double precision, several terms on one tape,
// and what programs report of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model_cases.h"
#include "sys/error.h"
#include "train/logprob_programs.h"
#include "train/losses.h"
#include "train/pretrain/programs.h"
#include "unit/cpu_case.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

using namespace cpu_test;
using cases::make_batch;
using cases::model_cases;

TEST(ZLoss, IsTheSquareOfTheLogSumExp) {
  const Array x(Shape{3, 4}, {2, 2, 2, 50, -1, -1, -1, 50, 0, 0, 0, 50});
  Array nll({3}), z({3});
  reference_kernels().cross_entropy(Array::stream(), {.nll = nll,
                                                      .z = z,
                                                      .logits = x,
                                                      .targets = Array::ints({3}, {1, 0, -100}),
                                                      .spec = {.vocab = 3}});
  reference::expect_near(
      z, {std::pow(2 + std::log(3.0), 2), std::pow(std::log(3.0) - 1, 2), 0 /* masked */});
}

TEST(ZLoss, ReferenceGradientsAreSlopes) {
  const int64_t N = 4, V = 7, wide = 9;
  const Array targets = Array::ints({N}, {3, -100, 0, 6});
  const Array scalars = Array::of(Scalars{.inv_targets = 0.25f, .loss_scale = 8});
  const Kernels& k = reference_kernels();
  for (float softcap : {0.f, 1.5f})
    for (float weight : {1.f, 0.5f}) {
      LossSpec spec{.vocab = V, .softcap = softcap, .weight = weight, .z_loss = 0.75f};
      const Array x = Array::random({N, wide}, 3), nll({N}), z({N}), mean({1}), dx = x.copy();
      const auto call = [&](const Array& logits) {
        k.cross_entropy(Array::stream(), {.nll = nll,
                                          .z = z,
                                          .logits = logits,
                                          .targets = targets,
                                          .scalars = scalars,
                                          .spec = spec});
      };
      const auto mean_of = [&](const Array& rows) {
        k.mean_loss(Array::stream(), {.loss = mean, .nll = rows, .scalars = scalars, .add = false});
        return mean[0];
      };
      const auto objective = [&] {
        call(x);
        return 8 * (double(weight) * mean_of(nll) + double(spec.z_loss) * mean_of(z));
      };
      spec.grad = true;
      call(dx);
      spec.grad = false;
      reference::expect_gradient("logits", x, dx, objective);
      for (int64_t j = 0; j < wide; ++j) EXPECT_EQ(dx[wide + j], 0) << "a masked row";
      for (int64_t n = 0; n < N; ++n) EXPECT_EQ(dx[n * wide + V], 0) << "past the vocabulary";
    }
}

TEST(ZLoss, KernelsAgainstTheReference) {
  const Array scalars = Array::of(Scalars{.inv_targets = 0.25f, .loss_scale = 2});
  for (DType d : dtypes)
    for (int64_t V : {2, 3, 48, 257, 2500})
      for (float cap : {0.0f, 3.0f})
        for (float z_loss : {1e-4f, 0.5f}) {
          const int64_t N = 5, wide = V + (V > 3 ? 5 : 0);
          const Array x = random({N, wide}, d, 6);
          const int32_t last = int32_t(V) - 1;
          const Array targets = Array::ints({N}, {0, last, -100, last / 2, 1});
          check("z-loss", d, [&](const Runner& r) {
            Array nll = r.sums({N}), z = r.sums({N}), same = r.sums({N}), loss = r.sums({1});
            Array kept = r.in_place(x), grad = r.in_place(x), z_alone = r.in_place(x);
            const auto call = [&](Tensor at, Tensor squares, LossSpec spec) {
              spec.vocab = V, spec.softcap = cap, spec.z_loss = z_loss;
              r.k.cross_entropy(r.s, {.nll = nll,
                                      .z = squares,
                                      .logits = at,
                                      .targets = targets,
                                      .scalars = scalars,
                                      .spec = spec});
            };
            call(kept, z, {});
            call(grad, same, {.grad = true});
            call(z_alone, {}, {.grad = true, .weight = 0});
            r.k.mean_loss(r.s, {.loss = loss, .nll = z, .scalars = scalars, .add = false});
            return outputs(std::move(nll), std::move(z), std::move(same), std::move(loss),
                           std::move(kept), std::move(grad), std::move(z_alone));
          });
        }
}

// A run without z-loss has the bits of one from before there was any.
TEST(ZLoss, WithoutWeightChangesNoBit) {
  const int64_t N = 5, V = 1500;
  const Array scalars = Array::of(Scalars{.inv_targets = 0.3f});
  const Array targets = Array::ints({N}, {5, 1, -100, 1499, 77});
  for (DType d : dtypes)
    for (float cap : {0.0f, 3.0f}) {
      const Array x = random({N, V}, d, 6);
      for (Isa isa : usable_isas()) {
        const Runner run = runner_of(isa, 2, d);
        Array nll = run.sums({N}), nll_beside = run.sums({N}), z = run.sums({N});
        Array plain = run.in_place(x), beside = run.in_place(x);
        CrossEntropyArgs args{.nll = nll,
                              .logits = plain,
                              .targets = targets,
                              .scalars = scalars,
                              .spec = {.softcap = cap, .grad = true}};
        run.k.cross_entropy(run.s, args);
        args.nll = nll_beside, args.z = z, args.logits = beside;
        run.k.cross_entropy(run.s, args);
        reference::expect_same_bytes(nll, nll_beside);
        reference::expect_same_bytes(plain, beside);
      }
    }
}

TEST(LossTerms, ShareABufferUnderTheirNames) {
  Tape t(DType::f32, "train");
  const Var first = t.add_loss({.name = "next_token"});
  const Var second = t.add_loss({.name = "z_loss", .weight = 0.5f, .validate = false});
  ASSERT_EQ(t.losses.size(), 2u);
  EXPECT_EQ(t.losses[1].value, second);
  EXPECT_EQ(t[first].storage, t.find("train.losses").id);
  EXPECT_EQ(t[second].storage, t[first].storage);
  EXPECT_EQ(t[second].offset, 4);
  t.add_loss({.name = "router_balance"});
  const std::vector<float> values{3, 4, 5};
  const auto names = [&](LossTerms which) {
    std::string text;
    for (const LossValue& l : named_losses(t.losses, values, which))
      text += fmt::format("{} {} ", l.name, l.value);
    return text;
  };
  EXPECT_EQ(names(LossTerms::all), "z_loss 4 router_balance 5 ");
  EXPECT_EQ(names(LossTerms::validated), "router_balance 5 ");
  EXPECT_THROW(t.add_loss({.name = "z_loss"}), Error);
  for (int64_t i = 3; i < most_loss_terms; ++i) t.add_loss({.name = std::to_string(i)});
  EXPECT_THROW(t.add_loss({.name = "one more"}), Error);
}

TEST(LossTerms, WeightsAreAtLeastZero) {
  LossConfig{.z_loss = 1e-4f}.check();
  for (const float bad : {-1e-4f, NAN, INFINITY}) {
    const LossConfig c{.z_loss = bad};
    EXPECT_THROW(c.check(), Error) << bad;
  }
}

ProgramSpec small_spec(float z_loss) {
  ProgramSpec s{.model = model_cases()[0].config, .B = 2, .T = 8, .accumulates = true};
  s.model.init_std = 0.2f, s.losses.z_loss = z_loss;
  return s;
}

struct Trained {
  Trained(Backend& b, const ProgramSpec& s)
      : params(b, decoder_params(s.model), s.dtype), memory(b, &params), programs(s, memory) {}
  std::vector<float> gradients() {
    std::vector<float> all;
    for (const ParamSpec& s : params.specs())
      for (float x : params.values(Part::grad, s.name)) all.push_back(x);
    return all;
  }
  std::vector<LossValue> terms() {
    LossQueue queue(params.backend());
    programs.send_terms(queue);
    return queue.take();
  }
  double z() { return terms().at(0).value; }

  ParamStore params;
  Memory memory;
  Programs programs;
};

TEST(LossTerms, AddUpOverMicroBatches) {
  const auto backend = make_cpu_backend(2);
  const ProgramSpec s = small_spec(0.1f);
  Trained run(*backend, s), plain(*backend, small_spec(0));
  for (Trained* t : {&run, &plain}) t->params.initialise(21);
  const Batch a = make_batch(s.model, s.B, s.T, false), b = make_batch(s.model, s.B, s.T, false, 3);
  const auto alone = [&](const Batch& batch) {
    run.programs.micro(batch, {.inv_targets = 1 / float(batch.count)}, true);
    return run.z();
  };
  const double z_a = alone(a), z_b = alone(b);
  EXPECT_GT(std::abs(z_a - z_b), 1e-4 * z_a) << "both batches have one value: the test is void";
  const Scalars scalars{.inv_targets = 1 / float(a.count + b.count)};
  for (Trained* t : {&run, &plain})
    t->programs.micro(a, scalars, true), t->programs.micro(b, scalars, false);
  const double want = (z_a * double(a.count) + z_b * double(b.count)) / double(a.count + b.count);
  EXPECT_NEAR(run.z(), want, 1e-5 * want);
  EXPECT_EQ(run.terms()[0].name, "z_loss");
  EXPECT_TRUE(plain.terms().empty());
  // The loss of logs and of the step guard is the cross-entropy alone.
  EXPECT_EQ(run.programs.loss(), plain.programs.loss());
  EXPECT_NE(run.gradients(), plain.gradients());

  EXPECT_EQ(run.programs.evaluate(a), plain.programs.evaluate(a));
  ASSERT_EQ(run.programs.evaluated_terms().size(), 1u);
  EXPECT_NEAR(run.programs.evaluated_terms()[0].value, z_a, 1e-5 * z_a);
  EXPECT_NEAR(run.z(), want, 1e-5 * want) << "an evaluation has values of its own";
}

TEST(LossTerms, LossScaleMultipliesEveryGradient) {
  const auto backend = make_cpu_backend(2);
  const ProgramSpec s = small_spec(0.1f);
  const Batch batch = make_batch(s.model, s.B, s.T, false);
  Trained run(*backend, s);
  run.params.initialise(21);
  std::vector<std::vector<float>> found;
  for (const float scale : {1.0f, 1024.0f}) {
    run.programs.micro(batch, {.inv_targets = 1 / float(batch.count), .loss_scale = scale}, true);
    found.push_back(run.gradients());
  }
  for (float& x : found[0]) x *= 1024;
  EXPECT_EQ(found[0], found[1]);
}

// What the term is for: logits that stay near a log-sum-exp of 0.
TEST(LossTerms, ZLossKeepsTheLogSumExpSmall) {
  const auto backend = make_cpu_backend(2);
  const auto trained = [&](float weight) {
    const ProgramSpec s = small_spec(weight);
    const Batch batch = make_batch(s.model, s.B, s.T, false);
    Trained run(*backend, s);
    run.params.initialise(21);
    Scalars scalars{.lr = 0.01f, .inv_targets = 1 / float(batch.count), .clip = 1};
    for (; scalars.step < 40; ++scalars.step) {
      run.programs.micro(batch, scalars, true);
      run.programs.update().run(scalars);
    }
    run.programs.evaluate(batch);
    return run.programs.evaluated_terms().at(0).value;
  };
  EXPECT_LT(trained(0.5f), 0.2 * trained(1e-8f));
}

TokenBatch token_batch(int64_t B, int32_t salt) {
  TokenBatch b{.B = B, .T = 9};
  for (int32_t i = 0; i < int32_t(B) * 9; ++i) b.tokens.push_back((i * 5 + salt) % 23);
  for (int32_t i = 1; i < int32_t(B) * 9; i += 2)
    b.rows.push_back(i), b.targets.push_back((i * 3 + salt) % 23);
  return b;
}

// Batches of other shapes are other programs, and yet of one step.
TEST(LossTerms, OfExamplesAddUpOverShapes) {
  const auto backend = make_cpu_backend(2);
  const TokenBatch a = token_batch(1, 2), b = token_batch(4, 5);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const ModelConfig& c : tiny_configs()) {
      TinyModel m(*backend, c, 7, dtype);
      Memory memory(*backend, &m.params);
      LogprobPrograms programs({.model = c, .dtype = dtype, .losses = {.z_loss = 0.1f}}, memory);
      EXPECT_THROW(programs.take_terms(), Error);
      LossMeans means;
      for (const TokenBatch* batch : {&a, &b}) {
        // Validation's loss has the bits of the log-probabilities.
        const std::vector<float> nll = programs.evaluate(*batch);
        means.add(programs.evaluated_terms(), int64_t(batch->rows.size()));
        const std::vector<float> logprob = programs.score(*batch).logprob;
        ASSERT_EQ(nll.size(), logprob.size());
        for (size_t i = 0; i < nll.size(); ++i) EXPECT_EQ(nll[i], -logprob[i]) << i;
      }
      ASSERT_EQ(means.means().size(), 1u);
      const double want = means.means()[0].value;
      const Scalars s{.inv_targets = 1 / float(a.rows.size() + b.rows.size())};
      programs.launch_train(a, s, true);
      programs.launch_train(b, s, false);
      programs.take_terms();  // of the first batch alone
      const std::vector<LossValue> terms = programs.take_terms();
      ASSERT_EQ(terms.size(), 1u);
      EXPECT_EQ(terms[0].name, "z_loss");
      EXPECT_NEAR(terms[0].value, want, (dtype == DType::f32 ? 1e-5 : 2e-2) * want);
    }
}

// The host's gradients, as of DPO and GRPO, enter the program times the loss scale too.
TEST(LossTerms, LossScaleMultipliesTheHostsGradients) {
  const auto backend = make_cpu_backend(2);
  TinyModel m(*backend, tiny_config());
  Memory memory(*backend, &m.params);
  LogprobPrograms programs({.model = m.config}, memory);
  const TokenBatch b = token_batch(2, 1);
  const std::vector<double> d(b.rows.size(), -0.01);
  std::vector<std::vector<float>> found;
  for (const float scale : {1.0f, 1024.0f}) {
    programs.forward(b, true);
    programs.backward(d, {.loss_scale = scale});
    found.emplace_back();
    for (const ParamSpec& p : m.params.specs())
      for (const float x : m.params.values(Part::grad, p.name)) found.back().push_back(x);
  }
  for (float& x : found[0]) x *= 1024;
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace hearth
