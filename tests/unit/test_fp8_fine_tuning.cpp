// Fine-tuning in fp8: where the host computes the loss, the forward pass keeps the bits of bf16 and
// only gradients are computed in fp8; adapters train on a base in fp8.
#include <gtest/gtest.h>

#include "cpu/backend.h"
#include "fp8_case.h"
#include "grpo_task.h"
#include "rewards/regex.h"
#include "train/logprob_programs.h"
#include "train/pretrain/programs.h"

namespace hearth {
namespace {

using namespace cases;

constexpr int64_t B = 2, T = 11;

TokenBatch some_batch(const ModelConfig& model) {
  TokenBatch b{.B = B, .T = T};
  for (int64_t i = 0; i < B * T; ++i) {
    b.tokens.push_back(int32_t(i * i % model.vocab));
    if (i % 3 == 0) continue;
    b.rows.push_back(int32_t(i)), b.targets.push_back(int32_t((7 * i + 1) % model.vocab));
  }
  return b;
}

struct Pass {
  std::vector<float> logprob, gradients;
  int fp8_products = 0, plain_products = 0;
};

// One step of two batches whose loss the host computes.
Pass pass_of(const ModelConfig& model, std::optional<Fp8Recording> fp8,
             Recompute recompute = Recompute::none) {
  const auto cpu = make_cpu_backend(2);
  ParamStore params(*cpu, decoder_params(model), DType::bf16);
  params.initialise(21);
  Memory memory(*cpu, &params);
  LogprobPrograms programs(
      {.model = model, .dtype = DType::bf16, .fp8 = std::move(fp8), .recompute = recompute},
      memory);
  const TokenBatch batch = some_batch(model);
  Pass p;
  for (const bool first : {true, false}) {
    const Logprobs found = programs.forward(batch, first);
    p.logprob.insert(p.logprob.end(), found.logprob.begin(), found.logprob.end());
    std::vector<float> d;
    for (size_t i = 0; i < found.logprob.size(); ++i) d.push_back(i % 2 ? -1e-3f : 4e-3f);
    programs.backward(std::span<const float>(d));
  }
  for (const ParamSpec& s : params.specs())
    if (s.trainable)
      for (const float g : params.values(Part::grad, s.name)) p.gradients.push_back(g);
  const auto& tape = programs
                         .program({B, T, bucket(int64_t(batch.rows.size()), buckets::head_rows)},
                                  LogprobPrograms::Kind::first)
                         .tape();
  for (const Node& n : tape.nodes) {
    const bool product = std::string_view(n.op->name).starts_with("gemm") ||
                         std::string_view(n.op->name).starts_with("linear");
    if (product) ++(is_fp8(tape[n.in[0]].dtype) ? p.fp8_products : p.plain_products);
  }
  return p;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i)
    dot += double(a[i]) * b[i], aa += double(a[i]) * a[i], bb += double(b[i]) * b[i];
  return dot / std::sqrt(aa * bb);
}

TEST(Fp8FineTuning, TheForwardPassKeepsTheBitsOfBf16) {
  for (const ModelCase& m : fp8_models()) {
    const ModelConfig model = m.config.resolve();
    const Pass fp8 = pass_of(model, Fp8Recording{}), plain = pass_of(model, {});
    EXPECT_TRUE(fp8.logprob == plain.logprob) << m.name;
    EXPECT_EQ(plain.fp8_products, 0);
    EXPECT_GE(fp8.fp8_products, 8 * model.layers) << m.name;  // two of each matrix
    EXPECT_GT(cosine(fp8.gradients, plain.gradients), 0.97) << m.name;
    EXPECT_LT(cosine(fp8.gradients, plain.gradients), 0.999999) << m.name << ": not rounded";
  }
}

TEST(Fp8FineTuning, RecomputationChangesNoBit) {
  for (const ModelCase& m : fp8_models()) {
    const ModelConfig model = m.config.resolve();
    const Pass kept = pass_of(model, Fp8Recording{}),
               again = pass_of(model, Fp8Recording{}, Recompute::block);
    EXPECT_TRUE(kept.logprob == again.logprob) << m.name;
    EXPECT_TRUE(kept.gradients == again.gradients) << m.name;
  }
}

// A scale is measured in its own micro-batch: one with large gradients does not make those after it
// coarser, nor does a step that no update followed.
TEST(Fp8FineTuning, ScalesDoNotDependOnEarlierBatches) {
  const ModelConfig model = fp8_models()[0].config.resolve();
  const TokenBatch batch = some_batch(model);
  const auto sites_after = [&](const std::vector<float>& gradients) {
    const auto cpu = make_cpu_backend(1);
    ParamStore params(*cpu, decoder_params(model), DType::bf16);
    params.initialise(21);
    Memory memory(*cpu, &params);
    LogprobPrograms programs({.model = model, .dtype = DType::bf16, .fp8 = Fp8Recording{}}, memory);
    bool first = true;
    for (const float g : gradients) {
      programs.forward(batch, first);
      programs.backward(std::vector<float>(batch.rows.size(), g));
      first = false;
    }
    std::vector<Fp8Site> sites(static_cast<size_t>(most_fp8_sites));
    StateRef<Fp8Site>(memory.state, "fp8.sites").download(sites);
    std::vector<float> scales;
    for (const Fp8Site& s : sites) scales.push_back(s.scale);
    return scales;
  };
  const std::vector<float> alone = sites_after({1e-3f});
  EXPECT_NE(alone, sites_after({1}));
  EXPECT_EQ(alone, sites_after({1, 1e-3f}));
  const float none = std::numeric_limits<float>::infinity();
  EXPECT_EQ(alone, sites_after({none, 1e-3f}));
}

TEST(Fp8FineTuning, WeightGradientsCanStayInBf16) {
  const ModelConfig model = fp8_models()[0].config.resolve();
  const Pass both = pass_of(model, Fp8Recording{}), some = pass_of(model, {{.wgrad = false}});
  EXPECT_LT(some.fp8_products, both.fp8_products);
  EXPECT_GT(some.fp8_products, 0);
}

TEST(Fp8FineTuning, AdaptersTrainOnABaseInFp8) {
  for (const ModelCase& m : fp8_models()) {
    if (m.name == "nocap") continue;  // its matrices have no names in files
    ModelConfig model = m.config;
    model.lora = {.rank = 3, .alpha = 6};  // no multiple of 16
    model = model.resolve();
    // The host's loss: the base is read, the adapters learn.
    const Pass fp8 = pass_of(model, Fp8Recording{}), plain = pass_of(model, {});
    EXPECT_TRUE(fp8.logprob == plain.logprob) << m.name;
    EXPECT_GT(fp8.fp8_products, 0) << m.name;
    EXPECT_GT(cosine(fp8.gradients, plain.gradients), 0.95) << m.name;
    // The loss of SFT.
    const auto cpu = make_cpu_backend(2);
    ParamStore params(*cpu, decoder_params(model), DType::bf16);
    params.initialise(21);
    Memory memory(*cpu, &params);
    LogprobPrograms programs(
        {.model = model, .dtype = DType::bf16, .fp8 = Fp8Recording{.measured = true}}, memory);
    UpdateProgram update("logprob", memory, {}, UpdateProgram::Fp8::on);
    const TokenBatch batch = some_batch(model);
    Scalars s;
    s.lr = 1e-2f, s.clip = 1, s.inv_targets = 1 / float(batch.rows.size());
    std::vector<double> losses;
    for (int step = 0; step < 12; ++step) {
      s.step = uint32_t(step);
      programs.launch_train(batch, s, true);
      double sum = 0;
      for (const float nll : programs.take_nll()) sum += nll;
      losses.push_back(sum), (void)programs.take_terms();
      update.run(s);
    }
    EXPECT_LT(losses.back(), 0.95 * losses.front()) << m.name;
  }
}

TEST(Fp8FineTuning, GrpoSamplesWhatItTrains) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2, whose reward the tasks use";
  const auto cpu = make_cpu_backend(2);
  ModelConfig model = byte_config();
  model.hidden = 32;
  GrpoConfig c;
  c.train_equal = true, c.dtype = TrainDType::fp8;
  GrpoTask task(*cpu, c, model, DType::bf16);
  const std::vector<float> before = task.weights();
  int64_t compared = 0;
  for (int i = 0; i < 5; ++i) {
    const StepFindings f = task.step();
    EXPECT_EQ(f.gap.most, 0);
    compared += f.gap.tokens;
  }
  EXPECT_GT(compared, 100);
  EXPECT_FALSE(before == task.weights());
  c.dtype = TrainDType::bf16;
  GrpoTask plain(*cpu, c, model, DType::bf16);
  for (int i = 0; i < 5; ++i) plain.step();
  EXPECT_FALSE(plain.weights() == task.weights());
}

}  // namespace
}  // namespace hearth
