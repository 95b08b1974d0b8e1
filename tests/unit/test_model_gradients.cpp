// Every choice a model config offers, on small models: gradients, bits, masks, accumulation.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "cpu/reference/reference.h"
#include "model_cases.h"
#include "train/pretrain/programs.h"

namespace hearth::cases {
namespace {

class Models : public testing::TestWithParam<ModelCase> {
 protected:
  std::unique_ptr<Backend> reference_ = make_reference_backend();
};

// Central differences of every parameter along one random direction and at one element.
TEST_P(Models, GradientsAreSlopes) {
  const double h = 1e-5, tolerance = 1e-5;
  ModelRun model(*reference_, GetParam(), {.dtype = DType::f64});
  model.run();
  const std::vector<Named> grads = model.gradients();
  ASSERT_FALSE(grads.empty());
  for (const Named& g : grads) {
    const Tensor weight = model.params().get(Part::weight, g.name);
    const Numbers at = read(*reference_, weight);
    const auto moved = [&](const Numbers& direction, double step) {
      Numbers x = at;
      for (size_t i = 0; i < x.size(); ++i) x[i] += step * direction[i];
      write(*reference_, weight, x);
      model.run();
      return model.loss();
    };
    double top = 1e-3, norm = 1e-6;
    size_t largest = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      norm += g.values[i] * g.values[i];
      if (std::abs(g.values[i]) > top) top = std::abs(g.values[i]), largest = i;
    }
    std::vector<float> random(at.size());
    draw(random, Init::uniform(1), 2, g.name);
    const Numbers along(random.begin(), random.end());
    Numbers one(at.size());
    one[largest] = 1;
    double want = 0;
    for (size_t i = 0; i < at.size(); ++i) want += along[i] * g.values[i];
    const double slope = (moved(along, h) - moved(along, -h)) / (2 * h);
    EXPECT_LT(std::abs(slope - want) / std::sqrt(norm), tolerance) << g.name;
    const double at_one = (moved(one, h) - moved(one, -h)) / (2 * h);
    EXPECT_LT(std::abs(at_one - g.values[largest]) / top, tolerance) << g.name;
    write(*reference_, weight, at);
  }
}

TEST_P(Models, FastBackendsAgreeWithTheReference) {
  struct Limit {
    DType dtype;
    double loss, gradient;  // over the loss; over the norm of each gradient
  };
  ModelRun want(*reference_, GetParam(), {.dtype = DType::f64});
  want.run();
  for (const auto& backend : fast_backends(1))
    for (const Limit& limit : {Limit{DType::f32, 1e-5, 1e-3}, Limit{DType::bf16, 0.03, 0.15}}) {
      SCOPED_TRACE(fmt::format("{} {}", backend->describe(), to_string(limit.dtype)));
      if (limit.dtype == DType::bf16 && chooses_experts(GetParam())) continue;
      ModelRun got(*backend, GetParam(), {.dtype = limit.dtype});
      got.run();
      EXPECT_NEAR(got.loss() / want.loss(), 1, limit.loss);
      const std::vector<Named> all = got.joined_gradients(), wanted = want.joined_gradients();
      for (size_t g = 0; g < all.size(); ++g) {
        const Numbers &a = all[g].values, &b = wanted[g].values;
        double difference = 0, norm = 0;
        for (size_t i = 0; i < a.size(); ++i)
          difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
        EXPECT_LT(std::sqrt(difference / (norm + 1e-12)), limit.gradient) << all[g].name;
      }
    }
}

// Loss and every gradient of one run.
std::vector<Numbers> everything(Backend& b, const ModelCase& m, const ModelRunSpec& s) {
  ModelRun model(b, m, s);
  model.run();
  std::vector<Numbers> all{{model.loss()}, model.nll()};
  for (const Named& g : model.gradients()) all.push_back(g.values);
  return all;
}

void expect_same_bits(const std::vector<Numbers>& got, const std::vector<Numbers>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(got[i] == want[i]) << "number " << i << ", off by " << error_of(got[i], want[i]);
}

TEST_P(Models, RecomputingGivesTheSameBits) {
  const auto fast = make_cpu_backend(1);
  for (Backend* b : {reference_.get(), fast.get()})
    for (DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", b->describe(), to_string(dtype)));
      const auto none = everything(*b, GetParam(), {.dtype = dtype});
      for (Recompute r : {Recompute::light, Recompute::block}) {
        SCOPED_TRACE(int(r));
        expect_same_bits(everything(*b, GetParam(), {.dtype = dtype, .recompute = r}), none);
      }
    }
}

TEST_P(Models, ThreadsGiveTheSameBits) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const auto one = everything(*make_cpu_backend(1), GetParam(), {.dtype = dtype});
    for (int threads : {2, 3}) {
      SCOPED_TRACE(threads);
      expect_same_bits(everything(*make_cpu_backend(threads), GetParam(), {.dtype = dtype}), one);
    }
  }
}

TEST_P(Models, NoTokenSeesTheFuture) {
  const ModelCase& m = GetParam();
  const auto fast = make_cpu_backend(1);
  const int64_t B = 2, T = 9;
  for (Backend* b : {reference_.get(), fast.get()}) {
    ModelRun model(*b, m, {.B = B, .T = T});
    const Batch batch = make_batch(m.config, B, T, m.documents);
    model.feed(batch);
    model.run();
    const Numbers before = model.nll();
    for (int64_t j = 0; j < T; ++j) {
      Batch other = batch;
      other.tokens[size_t(j)] = int32_t((other.tokens[size_t(j)] + 3) % m.config.vocab);
      model.feed(other);
      model.run();
      const Numbers after = model.nll();
      bool moved = false;
      for (int64_t i = 0; i < B * T; ++i) {
        const bool same_document =
            !m.documents || batch.documents[size_t(i)] == batch.documents[size_t(j)];
        const bool may_see = i >= j && i < T && same_document;
        moved |= before[size_t(i)] != after[size_t(i)];
        EXPECT_TRUE(may_see || before[size_t(i)] == after[size_t(i)])
            << b->describe() << ": row " << i << " saw " << j;
      }
      // A token whose own target is masked may be seen by nobody else.
      EXPECT_TRUE(moved || batch.targets[size_t(j)] < 0) << "token " << j << ": the test is void";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Models, testing::ValuesIn(model_cases()),
                         [](const auto& info) { return info.param.name; });

// --- through the programs of a training run ---

struct Training {
  Training(Backend& b, const ModelCase& m, int64_t B, bool accumulates)
      : params(b, decoder_params(m.config), DType::f32), memory(b, &params) {
    params.initialise(21);
    programs = std::make_unique<Programs>(ProgramSpec{.model = m.config,
                                                      .B = B,
                                                      .T = 6,
                                                      .documents = m.documents,
                                                      .eval_documents = m.documents,
                                                      .accumulates = accumulates,
                                                      .losses = {.balance_loss = 0}},
                                          memory);
  }
  ParamStore params;
  Memory memory;
  std::unique_ptr<Programs> programs;
};

ModelCase without_dropout(ModelCase m) {
  ModelConfig& c = m.config;
  c.dropout_embed = c.dropout_attention = c.dropout_residual = c.dropout_mlp = 0;
  c.lora.dropout = 0;
  return m;
}

// Sequences [begin, end) of a batch.
Batch part_of(const Batch& b, int64_t begin, int64_t end, int64_t T) {
  const auto cut = [&](const std::vector<int32_t>& v) {
    return v.empty() ? v : std::vector<int32_t>(v.begin() + begin * T, v.begin() + end * T);
  };
  Batch r{cut(b.tokens), cut(b.targets), cut(b.positions), cut(b.documents), 0, {}};
  for (int32_t t : r.targets) r.count += t >= 0;
  return r;
}

TEST_P(Models, MicroBatchesAddUpToOneBatch) {
  const ModelCase m = without_dropout(GetParam());
  const auto backend = make_cpu_backend(1);
  const int64_t k = 3, B = 2, T = 6;
  const Batch whole = make_batch(m.config, k * B, T, m.documents);
  Scalars s;
  s.inv_targets = 1 / float(whole.count);
  Training once(*backend, m, k * B, false), parts(*backend, m, B, true);
  once.programs->micro(whole, s, true);
  for (int round = 0; round < 2; ++round)  // the first micro-batch forgets what was there
    for (int64_t i = 0; i < k; ++i) {
      s.micro = uint32_t(i);
      parts.programs->micro(part_of(whole, i * B, (i + 1) * B, T), s, i == 0);
    }
  EXPECT_NEAR(parts.programs->loss(), once.programs->loss(), 1e-5);
  for (const ParamSpec& p : once.params.specs()) {
    if (!p.trainable) continue;
    const std::vector<float> a = parts.params.values(Part::grad, p.name);
    const std::vector<float> b = once.params.values(Part::grad, p.name);
    EXPECT_LT(error_of({a.begin(), a.end()}, {b.begin(), b.end()}), 1e-4) << p.name;
  }
}

TEST_P(Models, EvaluationGivesTheTrainingLoss) {
  const ModelCase m = without_dropout(GetParam());
  const auto backend = make_cpu_backend(1);
  const Batch batch = make_batch(m.config, 2, 6, m.documents);
  Training plain(*backend, m, 2, false), dropping(*backend, GetParam(), 2, false);
  Scalars s;
  s.inv_targets = 1 / float(batch.count);
  plain.programs->micro(batch, s, true);
  EXPECT_NEAR(plain.programs->evaluate(batch), plain.programs->loss(), 1e-5);
  EXPECT_EQ(dropping.programs->evaluate(batch), plain.programs->evaluate(batch));
}

TEST(ModelDropout, ChangesWithTheStepAndTheMicroBatch) {
  const auto backend = make_cpu_backend(1);
  for (const ModelCase& m : model_cases()) {
    if (m.config.dropout_mlp == 0) continue;
    const Batch batch = make_batch(m.config, 2, 6, m.documents);
    Training training(*backend, m, 2, false);
    const auto loss = [&](uint32_t step, uint32_t micro) {
      Scalars s;
      s.inv_targets = 1 / float(batch.count), s.step = step, s.micro = micro;
      training.programs->micro(batch, s, true);
      return training.programs->loss();
    };
    const double first = loss(0, 0);
    EXPECT_NE(loss(1, 0), first);
    EXPECT_NE(loss(0, 1), first);
    EXPECT_EQ(loss(0, 0), first);
  }
}

}  // namespace
}  // namespace hearth::cases
